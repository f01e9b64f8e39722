"""What the models cost, and the answers that were paid for but not used yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.llm.base import Usage
from nexus_tasks.settings import Price
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import ModelCall, SavedAnswer


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """Price of a call; ``price`` is USD per million input, output, cache-write and cache-read tokens."""
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens, usage.cache_read_tokens)
    return sum((Decimal(str(each)) * n for each, n in zip(price, counts, strict=True)), Decimal(0)) / 1_000_000


def record(
    tx: Transaction,
    namespace_id: int,
    *,
    job_id: str,
    purpose: str,
    model: str,
    usage: Usage,
    price: Price,
    seconds: float,
    fault: str,
) -> None:
    """Enter a call that returned, whatever its answer was worth."""
    tx.execute(
        insert(ModelCall).values(
            namespace_id=namespace_id,
            job_id=job_id,
            purpose=purpose,
            model=model,
            fault=fault,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cost_usd=cost_usd(usage, price),
            seconds=seconds,
        )
    )


def save_answer(tx: Transaction, namespace_id: int, request_hash: str, answer: Mapping[str, Any]) -> None:
    """Keep a validated answer until the job that asked has committed what it makes of it."""
    tx.execute(
        upsert(SavedAnswer)
        .values(namespace_id=namespace_id, request_hash=request_hash, answer=dict(answer))
        .on_conflict_do_nothing()
    )


def saved_answer(tx: Transaction, namespace_id: int, request_hash: str) -> dict[str, Any] | None:
    """The answer to a request that was paid for already, or ``None``."""
    return tx.scalar(
        select(SavedAnswer.answer).where(
            SavedAnswer.namespace_id == namespace_id, SavedAnswer.request_hash == request_hash
        )
    )


def use_up(tx: Transaction, namespace_id: int, request_hashes: Sequence[str]) -> None:
    """Delete saved answers in the transaction that holds what was made of them."""
    tx.execute(
        delete(SavedAnswer).where(
            SavedAnswer.namespace_id == namespace_id, SavedAnswer.request_hash.in_(request_hashes)
        )
    )


def spent(tx: Transaction, *, namespace_id: int | None = None, job_id: str | None = None) -> tuple[int, Decimal]:
    """Calls and USD of a job, or of a namespace today (UTC)."""
    query = select(func.count(), func.coalesce(func.sum(ModelCall.cost_usd), 0))
    if job_id is not None:
        query = query.where(ModelCall.job_id == job_id)
    if namespace_id is not None:
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        query = query.where(ModelCall.namespace_id == namespace_id, ModelCall.at >= midnight)
    calls, usd = tx.execute(query).one()
    return int(calls), Decimal(usd)
