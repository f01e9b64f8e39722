"""Enforce a namespace's budget per UTC day: before a model call, set aside (hold) the highest cost of the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from nexus_tasks.errors import OverBudget
from nexus_tasks.llm.base import LanguageModel, ModelRequest, Usage
from nexus_tasks.settings import Settings
from nexus_tasks.storage import ledger
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.text import estimate_tokens

# A hold expires after this many times the setting ``model_timeout``. A process that dies during a call cannot release
# its hold, so only the expiry gives the money back to the budget.
HOLD_TIMEOUTS = 2
# The hold of a batched request expires after 26 hours, because a batch ends within 24 hours.
BATCH_SECONDS = 26 * 3_600.0


@contextmanager
def hold_for_call(
    database: Database,
    settings: Settings,
    model: LanguageModel,
    namespace_id: int,
    budget: float | None,
    request: ModelRequest[Any],
) -> Iterator[None]:
    """Hold the highest cost of ``request`` while the call is under way.

    Args:
        budget: the namespace's budget in USD per UTC day. With ``None``, no money is held.

    Raises:
        OverBudget: the day's budget does not allow the call.
    """
    cost = highest_cost(settings, model, request)
    if budget is None or cost == 0:
        yield
        return
    with database.transaction() as tx:
        seconds = HOLD_TIMEOUTS * settings.model_timeout
        held, used = ledger.hold_budget(tx, namespace_id, budget_usd=budget, cost=cost, seconds=seconds)
    if held is None:
        raise _over_budget(budget, used, cost)
    try:
        yield
    finally:
        with database.transaction() as tx:
            ledger.release_hold(tx, held)


def hold_for_batch(
    tx: Transaction,
    settings: Settings,
    model: LanguageModel,
    namespace_id: int,
    budget: float | None,
    request: ModelRequest[Any],
) -> int | None:
    """Hold the highest cost of ``request`` at the price of a message batch, for 26 hours.

    Args:
        budget: the namespace's budget in USD per UTC day. With ``None``, no money is held.

    Returns:
        The hold's id; ``None`` when ``budget`` is ``None`` or the request costs nothing.

    Raises:
        OverBudget: the day's budget does not allow the request.
    """
    cost = highest_cost(settings, model, request) * ledger.BATCH_PRICE
    if budget is None or cost == 0:
        return None
    held, used = ledger.hold_budget(tx, namespace_id, budget_usd=budget, cost=cost, seconds=BATCH_SECONDS)
    if held is None:
        raise _over_budget(budget, used, cost)
    return held


def _over_budget(budget: float, used: Decimal, cost: Decimal) -> OverBudget:
    return OverBudget(
        f"{used:.4f} of {budget:.4f} USD are spent today, and the next call may cost up to {cost:.4f} USD.",
        detail=f"{used:.4f} of {budget:.4f} USD spent or held, the next call may cost {cost:.4f}",
    )


def highest_cost(settings: Settings, model: LanguageModel, request: ModelRequest[Any]) -> Decimal:
    """The highest possible cost of a live call, in USD.

    The estimated input tokens are priced as cache writes, which are the most expensive kind of input. The answer is
    priced at its highest length, ``max_tokens_PURPOSE`` tokens.
    """
    text = request.instructions + request.transcript + request.question
    usage = Usage(
        cache_write_tokens=estimate_tokens(text), output_tokens=getattr(settings, f"max_tokens_{request.purpose}")
    )
    return ledger.cost_usd(usage, settings.price_of(model.model_for(request.purpose)))
