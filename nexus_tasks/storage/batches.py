"""Storing requests for Anthropic's Message Batches API, which answers model requests later and at half the price.

A job queues a request. The job ``submit_batch`` sends the queued requests as one batch, and stores the results. The job
that queued the request then reads the result. The table of requests is the outbox of ``submit_batch``: its rows ask
for the job.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from nexus_tasks.storage import ledger
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import BatchRequest, MessageBatch, Namespace

MAX_ITEMS = 1_000  # the most requests of a batch; the API's limits are 100,000 requests and 256 MB


# --- the job that makes the request -----------------------------------------------------------------------------------
def lock_request(tx: Transaction, namespace_id: int, request_hash: str) -> BatchRequest | None:
    """The row of a request, or ``None``. The row stays locked until the transaction ends."""
    return tx.scalar(
        select(BatchRequest)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.request_hash == request_hash)
        .with_for_update()
    )


def queue_request(tx: Transaction, namespace_id: int, row: Mapping[str, Any]) -> None:
    """Queue a request for the next batch. ``row`` maps columns of :class:`BatchRequest` to values."""
    tx.execute(insert(BatchRequest).values(namespace_id=namespace_id, **row))


def set_wanted(tx: Transaction, row: BatchRequest, *, wanted: bool) -> None:
    """Set whether the job still wants the answer to a submitted request. An unwanted answer costs money too."""
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(wanted=wanted))


def remove_request(tx: Transaction, row: BatchRequest) -> None:
    """Delete a request, and release the request's hold on the budget."""
    _release(tx, row)
    tx.execute(delete(BatchRequest).where(BatchRequest.id == row.id))


# --- the job that submits and collects --------------------------------------------------------------------------------
def database_time(tx: Transaction) -> datetime:
    """The time of Postgres' clock. This clock decides when a batch is due, because a worker's clock may be wrong."""
    return tx.execute(select(func.now())).scalar_one()


def count_queued(tx: Transaction, namespace_id: int) -> tuple[int, datetime | None]:
    """The number of queued requests, and the time when the oldest of them was queued."""
    query = select(func.count(), func.min(BatchRequest.created_at)).where(
        BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued"
    )
    count, oldest = tx.execute(query).one()
    return int(count), oldest


def assemble(tx: Transaction, namespace_id: int) -> MessageBatch | None:
    """Put the oldest queued requests, at most ``MAX_ITEMS``, into a new batch, and give them the state ``submitted``.

    The caller must then send the batch to the API. Returns the batch, or ``None`` when no request is queued.
    """
    oldest = (
        select(BatchRequest.id)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued")
        .order_by(BatchRequest.id)
        .limit(MAX_ITEMS)
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
    """Fail every queued request, so that the requests' jobs call the model directly. Returns the number of requests."""
    rows = tx.scalars(
        select(BatchRequest)
        .where(BatchRequest.namespace_id == namespace_id, BatchRequest.state == "queued")
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        fail_request(tx, row)
    return len(rows)


def under_way(tx: Transaction, namespace_id: int) -> list[MessageBatch]:
    """The namespace's batches that have not ended, oldest first."""
    query = select(MessageBatch).where(MessageBatch.namespace_id == namespace_id).order_by(MessageBatch.id)
    return list(tx.scalars(query))


def outstanding_requests(tx: Transaction, batch_id: int) -> list[BatchRequest]:
    """The requests of a batch that have no result yet."""
    query = select(BatchRequest).where(BatchRequest.batch_id == batch_id, BatchRequest.state == "submitted")
    return list(tx.scalars(query.order_by(BatchRequest.id)))


def known_api_ids(tx: Transaction) -> set[str]:
    """The ids that the API gave to the unfinished batches of all namespaces."""
    return set(tx.scalars(select(MessageBatch.api_id).where(MessageBatch.api_id.is_not(None))))


def record_api_id(tx: Transaction, batch_id: int, api_id: str, *, poll_in: float) -> str | None:
    """Store the id that the API gave to a batch, and make the batch due for polling in ``poll_in`` seconds.

    When the batch has an API id already, nothing changes. Returns the batch's API id, which another run may have
    stored. Returns ``None`` when the batch has ended.
    """
    tx.execute(
        update(MessageBatch)
        .where(MessageBatch.id == batch_id, MessageBatch.api_id.is_(None))
        .values(api_id=api_id, due_at=func.now() + timedelta(seconds=poll_in))
        .execution_options(synchronize_session=False)
    )
    return tx.scalar(select(MessageBatch.api_id).where(MessageBatch.id == batch_id))


def reject_api_id(tx: Transaction, batch: MessageBatch) -> None:
    """Remove the API id of a batch, because the id belongs to another batch.

    The id is added to the batch's list ``rejected``, so that no run gives it to this batch again.
    """
    tx.execute(
        update(MessageBatch)
        .where(MessageBatch.id == batch.id)
        .values(api_id=None, rejected=func.array_append(MessageBatch.rejected, batch.api_id))
    )


def check_later(tx: Transaction, batch_id: int, seconds: float) -> None:
    """Make a batch due for the next poll in ``seconds``."""
    due = func.now() + timedelta(seconds=seconds)
    tx.execute(update(MessageBatch).where(MessageBatch.id == batch_id).values(due_at=due))


def lock_submitted(tx: Transaction, request_id: int) -> BatchRequest | None:
    """Lock a submitted request. Returns ``None`` when the request has a result already or was deleted."""
    row = tx.get(BatchRequest, request_id, with_for_update=True)
    return row if row is not None and row.state == "submitted" else None


def store_result(tx: Transaction, row: BatchRequest, result: Mapping[str, Any], call_id: int) -> None:
    """Store a request's result for the job. If the job no longer wants the result, delete the request instead."""
    if not row.wanted:
        remove_request(tx, row)
        return
    _back(tx, row, state="answered", result=dict(result), call_id=call_id)


def fail_request(tx: Transaction, row: BatchRequest) -> None:
    """Fail a request, so that its job calls the model directly. If the job wants no result, delete the request instead.

    Callers fail a request that expired, was cancelled or was refused. They also fail a queued request when too few
    requests are queued for a batch.
    """
    if row.wanted:
        _back(tx, row, state="failed")
    else:
        remove_request(tx, row)


def _back(tx: Transaction, row: BatchRequest, **values: Any) -> None:
    _release(tx, row)
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(hold_id=None, **values))


def _release(tx: Transaction, row: BatchRequest) -> None:
    if row.hold_id is not None:
        ledger.release_hold(tx, row.hold_id)


def close_batch(tx: Transaction, batch_id: int) -> None:
    """Delete a batch. Fail its requests that have no result, so that their jobs call the model directly."""
    for row in outstanding_requests(tx, batch_id):
        fail_request(tx, row)
    tx.execute(delete(MessageBatch).where(MessageBatch.id == batch_id))


# --- the outbox of submit_batch, and erasure --------------------------------------------------------------------------
def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str]]:
    """At most ``limit`` namespaces with queued or submitted requests, as (namespace id, name), in the order of ids.

    Args:
        after: only namespaces whose id is above this id.
    """
    waiting = (
        select(BatchRequest.id)
        .where(BatchRequest.namespace_id == Namespace.id, BatchRequest.state.in_(("queued", "submitted")))
        .exists()
    )
    query = select(Namespace.id, Namespace.name).where(Namespace.id > after, waiting).order_by(Namespace.id)
    return [(found, name) for found, name in tx.execute(query.limit(limit))]


def erase_texts(tx: Transaction, namespace_id: int, memory_ids: Sequence[int]) -> int:
    """Delete every request that contains the text of these memories, and the request's result.

    A request that was sent to the API and has no result yet costs money all the same. Therefore its row stays, without
    the text. When the result arrives, ``submit_batch`` adds the cost to the ledger and deletes the row.

    Returns:
        The number of requests that contained the text of one of the memories.
    """
    gone = select(BatchRequest).where(
        BatchRequest.namespace_id == namespace_id, BatchRequest.sources.op("&&")(list(memory_ids))
    )
    rows = tx.scalars(gone.with_for_update()).all()
    ids = {row.batch_id for row in rows if row.state == "submitted"}
    query = select(MessageBatch.id).where(MessageBatch.id.in_(ids), MessageBatch.api_id.is_not(None))
    sent = set(tx.scalars(query))
    for row in rows:
        if row.state == "submitted" and row.batch_id in sent:
            blank = {"wanted": False, "params": {}, "sources": []}
            tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(**blank))
        else:
            remove_request(tx, row)
    return len(rows)
