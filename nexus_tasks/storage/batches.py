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
from nexus_tasks.storage.models import BatchRequest, DeadLetter, MessageBatch, Namespace

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


def set_unwanted(tx: Transaction, row: BatchRequest) -> None:
    """Note that no job wants the answer to a submitted request any more. The answer costs money all the same."""
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(wanted=False))


def want_again(tx: Transaction, row: BatchRequest, sources: Sequence[int]) -> None:
    """Note that a job wants the answer to a submitted request again, which shows the memories ``sources``."""
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(wanted=True, sources=list(sources)))


def remove_request(tx: Transaction, row: BatchRequest) -> None:
    """Delete a request, and release the request's hold on the budget."""
    _release(tx, row)
    tx.execute(delete(BatchRequest).where(BatchRequest.id == row.id))


def withdraw(tx: Transaction, job_ids: Sequence[str]) -> None:
    """Delete the requests of jobs that are done or dropped. Requests that were submitted become unwanted instead.

    Their answers cost money all the same. A batch that no job waits for is cancelled.
    """
    query = select(BatchRequest).where(BatchRequest.job_id.in_(job_ids))
    for row in tx.scalars(query.order_by(BatchRequest.id).with_for_update()).all():
        if row.state == "submitted":
            set_unwanted(tx, row)
        elif row.state != "abandoned":
            remove_request(tx, row)


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


def are_open(tx: Transaction, namespace_id: int) -> bool:
    """Whether a batch of the namespace is under way."""
    return tx.scalar(select(MessageBatch.id).where(MessageBatch.namespace_id == namespace_id).limit(1)) is not None


def outstanding_requests(tx: Transaction, batch_id: int) -> list[BatchRequest]:
    """The requests of a batch that have no result yet, also those that no job waits for. The rows are locked."""
    open_states = BatchRequest.state.in_(("submitted", "abandoned"))
    query = select(BatchRequest).where(BatchRequest.batch_id == batch_id, open_states)
    return list(tx.scalars(query.order_by(BatchRequest.id).with_for_update()))


def sendable_requests(tx: Transaction, batch_id: int) -> list[BatchRequest]:
    """The requests of a batch that are to be sent. Deletes those that no job wants or whose text was erased."""
    sendable = list[BatchRequest]()
    for row in outstanding_requests(tx, batch_id):
        if row.state == "submitted":
            if row.wanted and row.params:
                sendable.append(row)
            else:
                remove_request(tx, row)
    return sendable


def oldest_request(tx: Transaction, batch_id: int) -> datetime | None:
    """When the oldest request of a batch was queued that has no result yet."""
    query = select(func.min(BatchRequest.created_at)).where(
        BatchRequest.batch_id == batch_id, BatchRequest.state == "submitted"
    )
    return tx.scalar(query)


def begin_submission(tx: Transaction, batch_id: int, items: int) -> None:
    """Store that a batch is about to be submitted with ``items`` requests. From now on the API may know the batch."""
    tx.execute(update(MessageBatch).where(MessageBatch.id == batch_id).values(items=items))


def submission_refused(tx: Transaction, batch_id: int) -> None:
    """Store that the API has not accepted the batch, so that no run asks the API for the batch."""
    tx.execute(update(MessageBatch).where(MessageBatch.id == batch_id).values(items=None))


def refuse_batches(tx: Transaction, namespace_id: int, *, days: float) -> None:
    """Remember for ``days`` that the model's provider has no message batches."""
    until = func.now() + timedelta(days=days)
    tx.execute(update(Namespace).where(Namespace.id == namespace_id).values(no_batches_until=until))


def are_refused(tx: Transaction, namespace_id: int) -> bool:
    """Whether the model's provider is known to have no message batches."""
    query = select(Namespace.no_batches_until > func.now()).where(Namespace.id == namespace_id)
    return bool(tx.scalar(query))


def is_wanted(tx: Transaction, batch_id: int) -> bool:
    """Whether a job waits for one of the batch's requests."""
    waits = (BatchRequest.state == "submitted") & BatchRequest.wanted
    return tx.scalar(select(BatchRequest.id).where(BatchRequest.batch_id == batch_id, waits).limit(1)) is not None


def note_cancelled(tx: Transaction, batch_id: int) -> None:
    """Store that the API was asked to cancel a batch."""
    tx.execute(update(MessageBatch).where(MessageBatch.id == batch_id).values(cancelled_at=func.now()))


def abandon(tx: Transaction, batch_id: int) -> bool:
    """Let the jobs of a batch's requests call the model directly, while the batch may still be answered.

    The rows stay, so that the ledger gets the cost of answers that come after all. Returns whether a job waited.
    """
    rows = [row for row in outstanding_requests(tx, batch_id) if row.state == "submitted"]
    for row in rows:
        abandon_request(tx, row)
    return any(row.wanted for row in rows)


def abandon_request(tx: Transaction, row: BatchRequest) -> None:
    """Let the job of one submitted request call the model directly; see :func:`abandon`."""
    _release(tx, row)
    values: dict[str, Any] = {"state": "abandoned", "hold_id": None, "params": {}}
    tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(**values))


def is_overdue(tx: Transaction, row: BatchRequest, *, unsubmitted: float, unanswered: float) -> bool:
    """Whether a request has waited for too long, so that its job calls the model itself.

    The job ``submit_batch`` normally prevents this. But its kind may be paused, for example.

    Args:
        unsubmitted: seconds after which a request is overdue that the API has not accepted.
        unanswered: seconds after which a request is overdue that the API has accepted.
    """
    batch = tx.get(MessageBatch, row.batch_id) if row.batch_id is not None else None
    accepted = batch is not None and batch.api_id is not None
    age = (database_time(tx) - row.created_at).total_seconds()
    return age > (unanswered if accepted else unsubmitted)


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
    return row if row is not None and row.state in ("submitted", "abandoned") else None


def store_result(tx: Transaction, row: BatchRequest, result: Mapping[str, Any], call_id: int) -> None:
    """Store a request's result for the job. If the job no longer wants the result, delete the request instead."""
    if not row.wanted or row.state == "abandoned":
        remove_request(tx, row)
        return
    _back(tx, row, state="answered", result=dict(result), call_id=call_id)


def fail_request(tx: Transaction, row: BatchRequest) -> None:
    """Fail a request, so that its job calls the model directly. If the job wants no result, delete the request instead.

    Callers fail a request that expired, was cancelled or was refused. They also fail a queued request when too few
    requests are queued for a batch.
    """
    if row.wanted and row.state != "abandoned":
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
def wanted(tx: Transaction, after: int, limit: int, *, job: str) -> list[tuple[int, str]]:
    """At most ``limit`` namespaces with queued or submitted requests, as (namespace id, name), in the order of ids.

    A namespace whose job is a dead letter is left out, until an operator retries or drops the letter.

    Args:
        after: only namespaces whose id is above this id.
        job: the kind of the job.
    """
    waiting = (
        select(BatchRequest.id)
        .where(BatchRequest.namespace_id == Namespace.id, BatchRequest.state.in_(("queued", "submitted", "abandoned")))
        .exists()
    )
    gave_up = (
        select(DeadLetter.id)
        .where(
            DeadLetter.namespace_id == Namespace.id,
            DeadLetter.kind == job,
            DeadLetter.resolution.is_(None),
        )
        .exists()
    )
    query = select(Namespace.id, Namespace.name).where(Namespace.id > after, waiting, ~gave_up).order_by(Namespace.id)
    return [(found, name) for found, name in tx.execute(query.limit(limit))]


def erase_texts(tx: Transaction, namespace_id: int, memory_ids: Sequence[int] | None = None) -> int:
    """Delete every request that contains the text of these memories, and the request's result.

    A request that was sent to the API, or may have been sent, and has no result yet costs money all the same. Therefore
    its row stays, without the text. When the result arrives, ``submit_batch`` adds the cost to the ledger and deletes
    the row. A batch that no job waits for is cancelled.

    Args:
        memory_ids: with ``None``, every request of the namespace is deleted.

    Returns:
        The number of requests that contained the text of one of the memories.
    """
    gone = select(BatchRequest).where(BatchRequest.namespace_id == namespace_id)
    if memory_ids is not None:
        gone = gone.where(BatchRequest.sources.op("&&")(list(memory_ids)))
    rows = tx.scalars(gone.with_for_update()).all()
    ids = {row.batch_id for row in rows}
    begun = select(MessageBatch.id).where(MessageBatch.id.in_(ids), MessageBatch.items.is_not(None))
    sent = set(tx.scalars(begun))  # a run locks the requests before it stores that it submits their batch
    for row in rows:
        if row.state in ("submitted", "abandoned") and row.batch_id in sent:
            blank = {"wanted": False, "params": {}, "sources": []}
            tx.execute(update(BatchRequest).where(BatchRequest.id == row.id).values(**blank))
        else:
            remove_request(tx, row)
    empty = ~select(BatchRequest.id).where(BatchRequest.batch_id == MessageBatch.id).exists()
    tx.execute(delete(MessageBatch).where(MessageBatch.id.in_(ids - sent), empty))
    return len(rows)
