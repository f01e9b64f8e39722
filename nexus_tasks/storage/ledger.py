"""Storing the ledger (all model calls and their cost), holds on the daily budget, and saved answers.

A hold is money that is set aside while a model call is under way. A saved answer is a model's answer that is kept until
the job has committed the answer's effects. If the run dies before the commit, the next run uses the saved answer, and
does not pay for a second call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Date, cast, delete, func, insert, select, text, update

from nexus_tasks.settings import Price
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import BatchRequest, BudgetHold, ModelCall, Namespace, SavedAnswer
from nexus_tasks.types import Spend

if TYPE_CHECKING:
    from nexus_tasks.llm.base import Usage

# A call through the Message Batches API costs this share of the price of a direct call.
# https://platform.claude.com/docs/en/build-with-claude/batch-processing
BATCH_PRICE = Decimal("0.5")


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """The cost of a call in USD.

    Args:
        usage: the numbers of tokens of the call.
        price: the prices of input, output, cache-write and cache-read tokens, in USD per million tokens.
    """
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
    return sum((Decimal(str(each)) * n for each, n in zip(price, counts, strict=True)), Decimal(0)) / 1_000_000


@dataclass(frozen=True, kw_only=True)
class PaidCall:
    """A model call that returned an answer.

    ``fault`` is the reason why the answer cannot be used. It is empty for a usable answer. ``price`` is described at
    :func:`cost_usd`. A ``batched`` call was made through the Message Batches API, and costs only the share
    ``BATCH_PRICE`` of this price. ``seconds`` is the duration of the call.
    """

    job_id: str
    purpose: str
    model: str
    usage: Usage
    price: Price
    seconds: float
    fault: str = ""
    batched: bool = False

    def row(self, namespace_id: int) -> dict[str, Any]:
        """The columns of the call's entry in the ledger."""
        return {
            "namespace_id": namespace_id,
            "job_id": self.job_id,
            "purpose": self.purpose,
            "model": self.model,
            "fault": self.fault,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "cache_write_tokens": self.usage.cache_write_tokens,
            "cache_read_tokens": self.usage.cache_read_tokens,
            "cost_usd": cost_usd(self.usage, self.price) * (BATCH_PRICE if self.batched else 1),
            "seconds": self.seconds,
            "batched": self.batched,
        }


def record_call(tx: Transaction, namespace_id: int, call: PaidCall) -> int:
    """Add a call to the ledger. Returns the entry's id."""
    [(call_id,)] = insert_rows(tx, ModelCall, [call.row(namespace_id)], returning="id")
    return int(call_id)


_RECORD = text(
    """
    WITH held AS (
        SELECT id FROM memories WHERE id = ANY(CAST(:rests_on AS bigint[])) ORDER BY id FOR KEY SHARE
    ), entered AS (
        INSERT INTO model_calls (namespace_id, job_id, purpose, model, fault, input_tokens, output_tokens,
                                 cache_write_tokens, cache_read_tokens, cost_usd, seconds, batched)
        SELECT :namespace_id, :job_id, :purpose, :model, :fault, :input_tokens, :output_tokens,
               :cache_write_tokens, :cache_read_tokens, :cost_usd, :seconds, :batched
        WHERE NOT (:again AND EXISTS (
            SELECT FROM saved_answers WHERE namespace_id = :namespace_id AND request_hash = :request_hash))
    ), kept AS (
        INSERT INTO saved_answers (namespace_id, request_hash, answer)
        SELECT :namespace_id, :request_hash, CAST(:answer AS jsonb)
        WHERE CAST(:answer AS text) IS NOT NULL AND (SELECT count(*) FROM held) = :how_many
        ON CONFLICT DO NOTHING
    )
    SELECT (SELECT count(*) FROM held) = :how_many
    """
)


def record_call_and_answer(
    tx: Transaction,
    namespace_id: int,
    call: PaidCall,
    *,
    request_hash: str,
    answer: Mapping[str, Any] | None,
    rests_on: Collection[int],
    again: bool = False,
) -> bool:
    """Add a call to the ledger and save its answer, in one statement.

    Args:
        answer: the validated answer. With ``None`` no answer is saved.
        rests_on: ids of the memories whose text the request contained.
        again: the connection was lost in an earlier attempt, which may have been committed. A call whose answer is
            saved is then in the ledger already.

    Returns:
        ``False`` when a memory of ``rests_on`` was erased after the request was made. The call is then in the ledger,
        and its answer is not saved.
    """
    values = call.row(namespace_id) | {
        "request_hash": request_hash,
        "answer": None if answer is None else json.dumps(answer),
        "rests_on": list(rests_on),
        "how_many": len(rests_on),
        "again": again,
    }
    return bool(tx.execute(_RECORD, values).scalar_one())


def record_fault(tx: Transaction, call_id: int, fault: str) -> None:
    """Set the fault of a ledger entry. The entry was written before the call's answer was validated."""
    tx.execute(update(ModelCall).where(ModelCall.id == call_id).values(fault=fault))


def save_answer(tx: Transaction, namespace_id: int, request_hash: str, answer: Mapping[str, Any]) -> None:
    """Save a validated answer under the hash of its request, until the job commits the answer's effects."""
    row = {"namespace_id": namespace_id, "request_hash": request_hash, "answer": dict(answer)}
    insert_rows(tx, SavedAnswer, [row], on_conflict="DO NOTHING")


_FIND_ANSWER = text(
    """
    SELECT (SELECT answer FROM saved_answers WHERE namespace_id = :namespace_id AND request_hash = :request_hash),
           EXISTS (SELECT FROM batch_requests WHERE namespace_id = :namespace_id AND request_hash = :request_hash)
    """
)


def find_answer(tx: Transaction, namespace_id: int, request_hash: str) -> tuple[dict[str, Any] | None, bool]:
    """The saved answer to a request, or ``None``; and whether the request is stored for a message batch."""
    answer, stored = tx.execute(_FIND_ANSWER, {"namespace_id": namespace_id, "request_hash": request_hash}).one()
    return answer, stored


_SETTLE = text(
    """
    WITH held AS (
        SELECT id FROM memories WHERE id = ANY(CAST(:rests_on AS bigint[])) ORDER BY id FOR KEY SHARE
    ), used AS (
        DELETE FROM saved_answers WHERE namespace_id = :namespace_id AND request_hash = ANY(CAST(:hashes AS text[]))
    )
    SELECT count(*) FROM held
    """
)


def settle(tx: Transaction, namespace_id: int, rests_on: Collection[int], request_hashes: Sequence[str]) -> bool:
    """Lock the memories that answers rest on, and delete the saved answers, in one statement.

    Call this function in the transaction that commits the effects of the answers. ``False`` means that one of the
    memories was erased: the transaction must be rolled back.
    """
    if not rests_on and not request_hashes:
        return True
    values = {"namespace_id": namespace_id, "rests_on": list(rests_on), "hashes": list(request_hashes)}
    return int(tx.execute(_SETTLE, values).scalar_one()) == len(rests_on)


_DELETE_ANSWERS = text(
    "DELETE FROM saved_answers WHERE namespace_id = :namespace_id AND request_hash = ANY(CAST(:hashes AS text[]))"
)


def delete_answers(tx: Transaction, namespace_id: int, request_hashes: Sequence[str]) -> None:
    """Delete saved answers. Call this function in the transaction that commits the effects of the answers."""
    tx.execute(_DELETE_ANSWERS, {"namespace_id": namespace_id, "hashes": list(request_hashes)})


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The answer to a request to hold money.

    Attributes:
        id: the hold's id; ``None`` when the budget does not allow the call.
        spent_usd: USD that the namespace has spent today.
        held_usd: USD that are held for other calls.
        reserved_usd: those of them that are held for message batches.
        frees_in: seconds until the first hold of another call expires; 0 when no money is held.
        day_ends_in: seconds until the next UTC day.
    """

    id: int | None
    spent_usd: Decimal
    held_usd: Decimal
    reserved_usd: Decimal
    frees_in: float
    day_ends_in: float


def hold_budget(
    tx: Transaction,
    namespace_id: int,
    *,
    budget_usd: float,
    cost: Decimal,
    seconds: float,
    run: tuple[str, str] = ("", ""),
) -> Hold:
    """Reserve ``cost`` USD of a namespace's daily budget for at most ``seconds``.

    When the rest of the budget is smaller than ``cost``, nothing is reserved.

    Args:
        run: the claim's key and the token of the run that calls the model. Holds of earlier runs of this claim are
            released, because these runs have ended. Empty when no run makes the call.
    """
    tx.execute(select(Namespace.id).where(Namespace.id == namespace_id).with_for_update(key_share=True))
    claim_key, token = run
    if claim_key:
        earlier = (BudgetHold.claim_key == claim_key) & (BudgetHold.token != token)
        tx.execute(delete(BudgetHold).where(BudgetHold.namespace_id == namespace_id, earlier))
    batched = select(BatchRequest.hold_id).where(
        BatchRequest.namespace_id == namespace_id, BatchRequest.hold_id.is_not(None)
    )
    query = select(
        func.coalesce(func.sum(BudgetHold.cost_usd), 0),
        func.coalesce(func.sum(BudgetHold.cost_usd).filter(BudgetHold.id.in_(batched)), 0),
        func.coalesce(func.extract("epoch", func.min(BudgetHold.expires_at) - func.now()), 0),
        86_400 - func.extract("epoch", func.now() - _midnight()),
    ).where(BudgetHold.namespace_id == namespace_id, BudgetHold.expires_at > func.now())
    held, reserved, frees_in, day_ends_in = tx.execute(query).one()
    spent, held = spent_today(tx, namespace_id=namespace_id)[1], Decimal(held)
    hold_id = None
    if spent + held + cost <= Decimal(str(budget_usd)):
        values = {"cost_usd": cost, "claim_key": claim_key, "token": token}
        statement = insert(BudgetHold).values(
            namespace_id=namespace_id, expires_at=func.now() + timedelta(seconds=seconds), **values
        )
        hold_id = tx.execute(statement.returning(BudgetHold.id)).scalar_one()
    times = {"frees_in": float(frees_in), "day_ends_in": float(day_ends_in)}
    return Hold(id=hold_id, spent_usd=spent, held_usd=held, reserved_usd=Decimal(reserved), **times)


class RunHold(NamedTuple):
    """A hold that a run made for its model call."""

    id: int
    namespace: str
    claim_key: str
    token: str
    expired: bool


def holds_of_runs(tx: Transaction) -> list[RunHold]:
    """Every hold that a run made for its model call."""
    query = select(
        BudgetHold.id,
        Namespace.name,
        BudgetHold.claim_key,
        BudgetHold.token,
        BudgetHold.expires_at <= func.now(),
    ).join(Namespace, Namespace.id == BudgetHold.namespace_id)
    return [RunHold(*row) for row in tx.execute(query.where(BudgetHold.claim_key != ""))]


_CALLS_WITHOUT_JOB = text(
    """
    SELECT hold.id FROM budget_holds AS hold JOIN namespaces ON namespaces.id = hold.namespace_id
    WHERE namespaces.name = :name AND hold.claim_key = '' AND hold.expires_at > now()
      AND NOT EXISTS (SELECT FROM batch_requests AS request
                      WHERE request.namespace_id = hold.namespace_id AND request.hold_id = hold.id)
    """
)


def calls_without_job(tx: Transaction, namespace: str) -> set[int]:
    """The holds of a namespace's model calls under way that no job makes, such as those of questions."""
    return set(tx.scalars(_CALLS_WITHOUT_JOB, {"name": namespace}))


def end_hold(tx: Transaction, hold_id: int) -> None:
    """Let a hold count no more from now on. Its row stays until :func:`release_hold`."""
    tx.execute(update(BudgetHold).where(BudgetHold.id == hold_id).values(expires_at=func.now()))


def release_hold(tx: Transaction, hold_id: int) -> None:
    """Delete a hold. Callers do this when the model call is in the ledger, or when the call was not made."""
    tx.execute(delete(BudgetHold).where(BudgetHold.id == hold_id))


def _midnight() -> Any:
    """The last midnight (UTC) in SQL, by the clock of Postgres."""
    return func.date_trunc("day", func.now(), "UTC")


def spent_today(tx: Transaction, *, namespace_id: int) -> tuple[int, Decimal]:
    """The model calls of a namespace since the last midnight (UTC), as (number of calls, USD)."""
    query = select(func.count(), func.coalesce(func.sum(ModelCall.cost_usd), 0)).where(
        ModelCall.namespace_id == namespace_id, ModelCall.at >= _midnight()
    )
    calls, usd = tx.execute(query).one()
    return int(calls), Decimal(usd)


def spent_by_day(tx: Transaction, namespace_id: int | None, since: datetime, until: datetime) -> list[Spend]:
    """The model calls of a period by day (UTC) and purpose. Without a namespace: those of all namespaces."""
    day = cast(func.timezone("UTC", ModelCall.at), Date).label("day")
    tokens = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")
    query = (
        select(
            day,
            ModelCall.purpose,
            func.count().label("calls"),
            func.count().filter(ModelCall.fault != "").label("failed"),
            *(func.sum(getattr(ModelCall, name)).label(name) for name in tokens),
            func.sum(ModelCall.cost_usd).label("cost_usd"),
        )
        .where(ModelCall.at >= since, ModelCall.at < until, namespaces.lives_here(ModelCall.namespace_id))
        .group_by(day, ModelCall.purpose)
        .order_by(day, ModelCall.purpose)
    )
    if namespace_id is not None:
        query = query.where(ModelCall.namespace_id == namespace_id)
    rows = (dict(row) for row in tx.execute(query).mappings())
    return [Spend(**row | {"day": str(row["day"]), "cost_usd": float(row["cost_usd"])}) for row in rows]
