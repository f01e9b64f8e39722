"""A namespace's budget for the day, enforced before the model is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from nexus_tasks.errors import OverBudget
from nexus_tasks.llm.base import LanguageModel, Request, Usage
from nexus_tasks.settings import Settings
from nexus_tasks.storage import ledger
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.text import estimate_tokens

# A call that was cut off is in no ledger; its hold ends by itself this many model timeouts later.
HOLD_TIMEOUTS = 2
BATCH_SECONDS = 26 * 3_600.0  # a batch ends after a day at the latest


@contextmanager
def within(
    database: Database, settings: Settings, model: LanguageModel, namespace_id: int, budget: float | None, request: Any
) -> Iterator[None]:
    """Hold what ``request`` may cost at the most while the call is under way.

    Raises:
        OverBudget: the day's budget does not allow the call.
    """
    cost = most(settings, model, request)
    if budget is None or cost == 0:
        yield
        return
    with database.transaction() as tx:
        seconds = HOLD_TIMEOUTS * settings.model_timeout
        held, used = ledger.hold_budget(tx, namespace_id, budget_usd=budget, cost=cost, seconds=seconds)
    if held is None:
        raise _over(budget, used, cost)
    try:
        yield
    finally:
        with database.transaction() as tx:
            ledger.release_hold(tx, held)


def hold_for_batch(
    tx: Transaction, settings: Settings, model: LanguageModel, namespace_id: int, budget: float | None, request: Any
) -> int | None:
    """Hold what ``request`` may cost at the most in a batch, for as long as that may take; ``None``: there is no need.

    Raises:
        OverBudget: the day's budget does not allow it.
    """
    cost = most(settings, model, request) * ledger.BATCH_PRICE
    if budget is None or cost == 0:
        return None
    held, used = ledger.hold_budget(tx, namespace_id, budget_usd=budget, cost=cost, seconds=BATCH_SECONDS)
    if held is None:
        raise _over(budget, used, cost)
    return held


def _over(budget: float, used: Decimal, cost: Decimal) -> OverBudget:
    return OverBudget(
        f"{used:.4f} of {budget:.4f} USD are spent today, and the next call may cost up to {cost:.4f} USD.",
        detail=f"{used:.4f} of {budget:.4f} USD spent or held, the next call may cost {cost:.4f}",
    )


def most(settings: Settings, model: LanguageModel, request: Request[Any]) -> Decimal:
    """USD that a call may cost at the most: its estimated input, none of it cached, and the longest answer."""
    text = request.instructions + request.transcript + request.question
    usage = Usage(
        cache_write_tokens=estimate_tokens(text), output_tokens=getattr(settings, f"max_tokens_{request.purpose}")
    )
    return ledger.cost_usd(usage, settings.price_of(model.model_for(request.purpose)))
