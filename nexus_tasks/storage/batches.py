"""Model requests that wait for the Message Batches API: from the job that asks, through a batch, back to the job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from nexus_tasks.storage import ledger
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import BatchRequest, MessageBatch, Namespace

MOST_ITEMS = 1_000  # of one batch; the API takes 100,000 or 256 MB


# --- the job that asks ------------------------------------------------------------------------------------------------
def find(tx: Transaction, namespace_id: int, request_hash: str) -> BatchRequest | None:
    """A request's row, locked, or ``None``."""
    return tx.scalar(
        select(BatchRequest)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.request_hash == request_hash)
        .with_for_update()
    )


def queue(tx: Transaction, namespace_id: int, row: Mapping[str, Any]) -> None:
    """Write down a request for the next batch."""
    tx.execute(insert(BatchRequest).values(namespace_id=namespace_id, **row))


def want(tx: Transaction, row: BatchRequest, *, wanted: bool) -> None:
    """Whether anyone still wants the answer of a submitted request; it is paid for either way."""
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(wanted=wanted))


def remove(tx: Transaction, row: BatchRequest) -> None:
    """Delete a request that is done with, or not to be sent any more."""
    _release(tx, row)
    tx.execute(delete(BatchRequest).where(BatchRequest.id == row.id))


# --- the job that submits and collects --------------------------------------------------------------------------------
def clock(tx: Transaction) -> datetime:
    """The time of Postgres, by which batches are due: that of a worker may be wrong."""
    return tx.execute(select(func.now())).scalar_one()


def queued(tx: Transaction, namespace_id: int) -> tuple[int, datetime | None]:
    """How many requests wait to be submitted, and since when the oldest does."""
    query = select(func.count(), func.min(BatchRequest.created_at)).where(
        BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued"
    )
    count, oldest = tx.execute(query).one()
    return int(count), oldest


def draw(tx: Transaction, namespace_id: int) -> MessageBatch | None:
    """Put the oldest queued requests into a new batch, which is not submitted yet; ``None`` when there are none."""
    oldest = (
        select(BatchRequest.id)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued")
        .order_by(BatchRequest.id)
        .limit(MOST_ITEMS)
        .with_for_update(skip_locked=True)
    )
    ids = list(tx.scalars(oldest))
    if not ids:
        return None
    batch = MessageBatch(namespace_id=namespace_id, token=uuid.uuid4().hex)
    tx.add(batch)
    tx.flush()
    tx.execute(update(BatchRequest).where(BatchRequest.id.in_(ids)).values(state="submitted", batch_id=batch.id))
    tx.refresh(batch)
    return batch


def give_up_queued(tx: Transaction, namespace_id: int) -> int:
    """Let queued requests go live after all; returns how many."""
    rows = tx.scalars(
        select(BatchRequest)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued")
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        fail(tx, row)
    return len(rows)


def under_way(tx: Transaction, namespace_id: int) -> list[MessageBatch]:
    """The namespace's batches, oldest first."""
    query = select(MessageBatch).where(MessageBatch.namespace_id == namespace_id).order_by(MessageBatch.id)
    return list(tx.scalars(query))


def members(tx: Transaction, batch_id: int) -> list[BatchRequest]:
    """The requests of a batch that have not come back."""
    query = select(BatchRequest).where(BatchRequest.batch_id == batch_id, BatchRequest.state == "submitted")
    return list(tx.scalars(query.order_by(BatchRequest.id)))


def known_ids(tx: Transaction) -> set[str]:
    """The API's ids of all batches under way, of every namespace."""
    return set(tx.scalars(select(MessageBatch.api_id).where(MessageBatch.api_id.is_not(None))))


def is_called(tx: Transaction, batch_id: int, api_id: str, *, look_in: float) -> str | None:
    """Note the API's id of a batch; returns the one that stands, which another run may have noted before.

    ``None`` when the batch has ended meanwhile.
    """
    tx.execute(
        update(MessageBatch)
        .where(MessageBatch.id == batch_id, MessageBatch.api_id.is_(None))
        .values(api_id=api_id, due_at=func.now() + timedelta(seconds=look_in))
        .execution_options(synchronize_session=False)
    )
    return tx.scalar(select(MessageBatch.api_id).where(MessageBatch.id == batch_id))


def is_not(tx: Transaction, batch: MessageBatch) -> None:
    """Take back an id that turned out to be somebody else's batch."""
    tx.execute(
        update(MessageBatch)
        .where(MessageBatch.id == batch.id)
        .values(api_id=None, rejected=func.array_append(MessageBatch.rejected, batch.api_id))
    )


def look_later(tx: Transaction, batch_id: int, seconds: float) -> None:
    """Look at a batch again in ``seconds``."""
    due = func.now() + timedelta(seconds=seconds)
    tx.execute(update(MessageBatch).where(MessageBatch.id == batch_id).values(due_at=due))


def submitted(tx: Transaction, request_id: int) -> BatchRequest | None:
    """A request that has not come back, locked; ``None`` when it has, or is gone."""
    row = tx.get(BatchRequest, request_id, with_for_update=True)
    return row if row is not None and row.state == "submitted" else None


def arrive(tx: Transaction, row: BatchRequest, result: Mapping[str, Any], call_id: int) -> None:
    """Keep the answer of a request until its job reads it; one that nobody wants any more is dropped."""
    if not row.wanted:
        remove(tx, row)
        return
    _back(tx, row, state="answered", result=dict(result), call_id=call_id)


def fail(tx: Transaction, row: BatchRequest) -> None:
    """Let a request's job ask live: it expired, was cancelled or refused, or has too little company."""
    if row.wanted:
        _back(tx, row, state="failed")
    else:
        remove(tx, row)


def _back(tx: Transaction, row: BatchRequest, **values: Any) -> None:
    _release(tx, row)
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(hold_id=None, **values))


def _release(tx: Transaction, row: BatchRequest) -> None:
    if row.hold_id is not None:
        ledger.release(tx, row.hold_id)


def close(tx: Transaction, batch_id: int) -> None:
    """End a batch: what has not come back goes live."""
    for row in members(tx, batch_id):
        fail(tx, row)
    tx.execute(delete(MessageBatch).where(MessageBatch.id == batch_id))


# --- others -----------------------------------------------------------------------------------------------------------
def unattended(tx: Transaction, after: int, limit: int) -> list[tuple[int, str]]:
    """Ids and names of namespaces, from id ``after`` on, with requests that are queued or in a batch."""
    waiting = (
        select(BatchRequest.id)
        .where(BatchRequest.namespace_id == Namespace.id, BatchRequest.state.in_(("queued", "submitted")))
        .exists()
    )
    query = select(Namespace.id, Namespace.name).where(Namespace.id > after, waiting).order_by(Namespace.id)
    return [(found, name) for found, name in tx.execute(query.limit(limit))]


def erase(tx: Transaction, namespace_id: int, memory_ids: Sequence[int]) -> int:
    """Delete the requests, and their answers, that hold the text of any of these memories; returns how many.

    Of one that was submitted, the row stays without its text until the answer is in: it is paid for, and then dropped.
    """
    gone = select(BatchRequest).where(
        BatchRequest.namespace_id == namespace_id, BatchRequest.sources.op("&&")(list(memory_ids))
    )
    rows = tx.scalars(gone.with_for_update()).all()
    ids = {row.batch_id for row in rows if row.state == "submitted"}
    query = select(MessageBatch.id).where(MessageBatch.id.in_(ids), MessageBatch.api_id.is_not(None))
    sent = set(tx.scalars(query))
    for row in rows:
        if row.state == "submitted" and row.batch_id in sent:  # it is paid for: its entry in the ledger is to come
            blank = {"wanted": False, "params": {}, "sources": []}
            tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(**blank))
        else:
            remove(tx, row)
    return len(rows)
