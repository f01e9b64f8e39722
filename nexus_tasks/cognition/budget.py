"""Enforce a namespace's budget per UTC day: before a model call, set aside (hold) the highest cost of the call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import BudgetHeld, OverBudget, PriceUnknown
from nexus_tasks.llm.base import ModelRequest, Usage
from nexus_tasks.storage import ledger, namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.text import most_tokens

# A hold expires after this many times the setting ``model_timeout``. The end of the call releases the hold. When the
# process dies during the call, the next run of the job or reconcile releases the hold. The expiry is for holds that
# nothing releases, such as those of a dry run that was killed.
HOLD_TIMEOUTS = 2
# The hold of a batched request expires after 26 hours, because a batch ends within 24 hours.
BATCH_SECONDS = 26 * 3_600.0


@contextmanager
def hold_for_call(resources: Resources, job: JobContext, request: ModelRequest[Any]) -> Iterator[None]:
    """Hold the highest cost of ``request`` while the call is under way. Without a budget, no money is held.

    A call without a job holds at least 0 USD. A move of the namespace to another cell waits for the end of the hold, so
    that the ledger of the new cell has the call. A move waits for the runs of jobs in another way.

    Raises:
        BudgetHeld: other calls hold the money that this call needs.
        OverBudget: the day's budget does not allow the call.
        PriceUnknown: the namespace has a budget, and the model has no price.
        NamespaceMoving: the call has no job, and the namespace is moving to another cell.
        NamespaceMoved: the call has no job, and the namespace has moved to another cell.
    """
    budget = job.budget()
    cost = highest_cost(resources, request)
    has_job = job.run != ("", "")
    if budget is None or (cost == 0 and _has_price(resources, request)):
        if has_job:
            yield
            return
        budget, cost = math.inf, Decimal(0)
    else:
        _refuse_without_price(resources, request)
    seconds = HOLD_TIMEOUTS * resources.settings.model_timeout
    with waking_cheaper_jobs(job), resources.database.transaction() as tx:
        if not has_job:
            namespaces.get(tx, job.namespace)
        hold = _hold(tx, job, budget, cost, seconds, run=job.run)
    try:
        yield
    finally:
        if cost:
            # The row goes last: if this process dies before that, reconcile finds the row and wakes the waiting jobs.
            with resources.database.transaction() as tx:
                ledger.end_hold(tx, hold)
            job.freed()
        with resources.database.transaction() as tx:
            ledger.release_hold(tx, hold)


@contextmanager
def waking_cheaper_jobs(job: JobContext) -> Iterator[None]:
    """Wake the jobs that wait behind this one, when the end of no other call can help it: they may cost less.

    The transaction belongs inside the block, because waking jobs asks Redis and Postgres.
    """
    try:
        yield
    except BudgetHeld as error:
        if error.wait_reason == error.reserved_reason:
            job.freed()
        raise  # otherwise a call that ends wakes the next job
    except OverBudget:
        job.freed()
        raise


def hold_for_batch(
    tx: Transaction, resources: Resources, job: JobContext, request: ModelRequest[Any], *, budget: float | None
) -> int | None:
    """Hold the highest cost of ``request`` at the price of a message batch, for 26 hours.

    Args:
        budget: ``job.budget()``, which was read before the transaction: it may need a second connection.

    Returns:
        The hold's id; ``None`` when the namespace has no budget or the request costs nothing.

    Raises:
        BudgetHeld: other calls hold the money that this request needs.
        OverBudget: the day's budget does not allow the request.
        PriceUnknown: the namespace has a budget, and the model has no price.
    """
    cost = highest_cost(resources, request) * ledger.BATCH_PRICE
    if budget is None or (cost == 0 and _has_price(resources, request)):
        return None
    _refuse_without_price(resources, request)
    return _hold(tx, job, budget, cost, BATCH_SECONDS)


def _has_price(resources: Resources, request: ModelRequest[Any]) -> bool:
    return resources.settings.has_price(resources.model.model_for(request.purpose))


def _refuse_without_price(resources: Resources, request: ModelRequest[Any]) -> None:
    """Refuse a call that would count as 0 USD, and so would pass any budget."""
    model = resources.model.model_for(request.purpose)
    if not _has_price(resources, request):
        raise PriceUnknown(
            f"The price of the model {model} is unknown, so its calls cannot be kept to the namespace's budget.",
            detail=f"the price of {model} is unknown",
        )


def _hold(
    tx: Transaction,
    job: JobContext,
    budget: float,
    cost: Decimal,
    seconds: float,
    *,
    run: tuple[str, str] = ("", ""),
) -> int:
    hold = ledger.hold_budget(tx, job.namespace_id, budget_usd=budget, cost=cost, seconds=seconds, run=run)
    if hold.id is not None:
        return hold.id
    if hold.spent_usd + cost <= Decimal(str(budget)):
        raise BudgetHeld(
            f"{hold.spent_usd:.4f} of {budget:.4f} USD are spent today and {hold.held_usd:.4f} are held for other"
            f" calls, and the next call may cost up to {cost:.4f} USD.",
            detail=f"{hold.spent_usd:.4f} of {budget:.4f} USD spent, {hold.held_usd:.4f} held, the next call may cost"
            f" {cost:.4f}",
            day_ends_in=hold.day_ends_in,
            frees_in=hold.frees_in,
            reserved=hold.spent_usd + hold.reserved_usd + cost > Decimal(str(budget)),
        )
    raise OverBudget(
        f"{hold.spent_usd:.4f} of {budget:.4f} USD are spent today, and the next call may cost up to {cost:.4f} USD.",
        detail=f"{hold.spent_usd:.4f} of {budget:.4f} USD spent, the next call may cost {cost:.4f}",
        day_ends_in=hold.day_ends_in,
    )


def highest_cost(resources: Resources, request: ModelRequest[Any]) -> Decimal:
    """The highest possible cost of a live call, in USD.

    The estimated input tokens are priced as input or as cache writes, whichever costs more. The answer is priced at its
    highest length, ``max_tokens_PURPOSE`` tokens.
    """
    tokens = most_tokens(request.instructions + request.transcript + request.question)
    longest = getattr(resources.settings, f"max_tokens_{request.purpose}")
    price = resources.settings.price_of(resources.model.model_for(request.purpose))
    return max(
        ledger.cost_usd(Usage(input_tokens=tokens, output_tokens=longest), price),
        ledger.cost_usd(Usage(cache_write_tokens=tokens, output_tokens=longest), price),
    )
