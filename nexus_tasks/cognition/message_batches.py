"""Answers that may take until tomorrow, at half the price: model requests through the provider's message batches.

A job of urgency ``dream`` writes its request down and waits. One job per namespace submits the requests that have come
together and brings the answers back; every step of it is durable before the next one, and may be cut off anywhere:

1. The batch is put together in Postgres, then submitted, then its id is noted. When the last of these is missing, the
   provider is asked for a batch that looks like ours before anything is submitted again.
2. Each answer is entered into the ledger and kept in one transaction, once: fetching the results again changes nothing.
3. What has no answer when the batch has ended goes live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nexus_tasks.cognition import budget
from nexus_tasks.errors import AwaitsBatch, Erased, Permanent
from nexus_tasks.llm.base import AnswerT, Batches, BatchResult, Completion, Request
from nexus_tasks.storage import batches, ledger, memories
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import BatchRequest, MessageBatch

if TYPE_CHECKING:  # it imports this module
    from nexus_tasks.cognition.resources import JobContext, Resources

PURPOSES = frozenset(("digest", "reflect"))  # what dreams ask for
PATIENCE = 600.0  # seconds a request waits for company, then it goes live
POLL = 60.0  # seconds between two looks at a batch
CLOCKS = timedelta(minutes=5)  # by which ours and the provider's may differ


# --- the job that asks ------------------------------------------------------------------------------------------------
def look(
    resources: Resources, job: JobContext, provider: Batches, request: Request[AnswerT], request_hash: str
) -> Completion[AnswerT] | None:
    """The answer to ``request`` when it has come back with a batch; ``None`` when it is to be asked live.

    Raises:
        AwaitsBatch: it is under way, or is now written down for the next batch.
        OverBudget: the namespace's budget for the day does not allow it.
        Erased: a memory that the request shows was erased meanwhile.
    """
    with resources.database.transaction() as tx:
        row = batches.lock_request(tx, job.namespace_id, request_hash)
        if row is None:
            if job.urgency != "dream":
                return None
            if not memories.lock_existing(tx, job.rests_on):
                raise Erased
            batches.queue_request(
                tx,
                job.namespace_id,
                _row(resources, job, provider, request, request_hash)
                | {
                    "hold_id": budget.hold_for_batch(
                        tx,
                        resources.settings,
                        resources.model,
                        job.namespace_id,
                        job.budget_usd,
                        request,
                    )
                },
            )
        elif row.state == "answered":
            return _read(tx, job, provider, request, row)
        elif row.state == "failed":
            batches.remove_request(tx, row)
            return None
        elif job.urgency == "live":
            if row.state == "queued":
                batches.remove_request(tx, row)
            else:
                batches.set_wanted(tx, row, wanted=False)
            return None
        elif not row.wanted:
            batches.set_wanted(tx, row, wanted=True)
    job.queued()
    raise AwaitsBatch


def _row(
    resources: Resources, job: JobContext, provider: Batches, request: Request[Any], request_hash: str
) -> dict[str, Any]:
    return {
        "request_hash": request_hash,
        "job_id": job.job_id,
        "purpose": request.purpose,
        "model": resources.model.model_for(request.purpose),
        "params": provider.params(request),
        "sources": sorted(request.material.rests_on),
    }


def _read(
    tx: Transaction, job: JobContext, provider: Batches, request: Request[AnswerT], row: BatchRequest
) -> Completion[AnswerT]:
    """A kept answer, moved to where those of live calls are until their job commits."""
    completion = provider.read(row.result or {}, request, row.model)
    if completion.answer is not None and memories.lock_existing(tx, job.rests_on):  # else the job's commit refuses it
        ledger.save_answer(tx, job.namespace_id, row.request_hash, completion.answer.model_dump(mode="json"))
    elif completion.fault and row.call_id is not None:
        ledger.record_fault(tx, row.call_id, completion.fault)
    batches.remove_request(tx, row)
    return completion


# --- the job that submits and collects --------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Standing:
    """Whether something came back for the jobs that wait, and in how many seconds to look again, if at all."""

    back: bool
    seconds: float | None
    detail: str = ""


def advance(resources: Resources, namespace_id: int, still_mine: Callable[[], None]) -> Standing:
    """Take a namespace's batches as far as they go now.

    Raises:
        JobError: the provider does not answer; nothing is lost, the next run goes on from there.
    """
    provider = resources.model.batches
    back = False
    with resources.database.transaction() as tx:
        under_way, now = batches.under_way(tx, namespace_id), batches.database_time(tx)
        if provider is None:  # the deployment has changed to a model without batches
            for batch in under_way:
                batches.close_batch(tx, batch.id)
            back = batches.give_up_queued(tx, namespace_id) > 0 or bool(under_way)
            return Standing(back=back, seconds=None)
    for batch in under_way:
        still_mine()
        back |= _advance(resources, provider, batch, now)
    with resources.database.transaction() as tx:
        queued, oldest = batches.count_queued(tx, namespace_id)
        drawn = batches.assemble(tx, namespace_id) if queued >= resources.settings.batch_threshold else None
        if drawn is None and oldest and batches.database_time(tx) - oldest >= timedelta(seconds=PATIENCE):
            back |= batches.give_up_queued(tx, namespace_id) > 0
    if drawn is not None:
        still_mine()
        _submit(resources, provider, drawn)
    return _standing(resources, namespace_id, back)


def _standing(resources: Resources, namespace_id: int, back: bool) -> Standing:
    with resources.database.transaction() as tx:
        under_way, now = batches.under_way(tx, namespace_id), batches.database_time(tx)
        queued, oldest = batches.count_queued(tx, namespace_id)
    looks = [max((batch.due_at - now).total_seconds(), 1.0) for batch in under_way]
    if oldest:
        looks.append(max(PATIENCE - (now - oldest).total_seconds(), 1.0))
    detail = (
        f"{len(under_way)} batches under way, {queued} of {resources.settings.batch_threshold} requests for the next"
    )
    return Standing(back=back, seconds=min(looks) if looks else None, detail=detail)


def _advance(resources: Resources, provider: Batches, batch: MessageBatch, now: datetime) -> bool:
    """Submit a batch, or collect its results when it has ended; ``True`` when jobs can go on."""
    if batch.api_id is None:
        _submit(resources, provider, batch, again=True)
        return False
    if batch.due_at > now:
        return False
    try:
        ended = provider.ended(batch.api_id)
    except Permanent:  # the provider knows it no more
        with resources.database.transaction() as tx:
            batches.close_batch(tx, batch.id)
        return True
    if not ended:
        with resources.database.transaction() as tx:
            batches.check_later(tx, batch.id, POLL)
        return False
    return _collect(resources, provider, batch)


def _submit(resources: Resources, provider: Batches, batch: MessageBatch, *, again: bool = False) -> None:
    """Submit a batch and note its id; ``again`` looks first whether that was done, and only the note is missing."""
    with resources.database.transaction() as tx:
        items = {f"{batch.token}-{row.id}": row.params for row in batches.outstanding_requests(tx, batch.id)}
        known = batches.known_api_ids(tx) | set(batch.rejected)
        if not items:
            batches.close_batch(tx, batch.id)
            return
    found = provider.since(batch.created_at - CLOCKS, len(items)) if again else []
    lost = [api_id for api_id in found if api_id not in known]
    api_id = lost[-1] if lost else provider.submit(items)
    with resources.database.transaction() as tx:
        called = batches.record_api_id(tx, batch.id, api_id, poll_in=POLL)
    if called != api_id and not lost:  # another run has submitted it as well: this one was taken for dead, or that one
        provider.cancel(api_id)


def _collect(resources: Resources, provider: Batches, batch: MessageBatch) -> bool:
    assert batch.api_id is not None
    ours = 0
    seconds = (datetime.now(UTC) - batch.created_at).total_seconds()
    for result in provider.results(batch.api_id):
        token, _, number = result.custom_id.partition("-")
        if token != batch.token or not number.isdigit():
            continue
        ours += 1
        _take(resources, int(number), result, seconds)
    with resources.database.transaction() as tx:
        if not ours:  # another deployment's, taken for the one whose submission was cut off
            batches.reject_api_id(tx, batch)
            return False
        batches.close_batch(tx, batch.id)
    return True


def _take(resources: Resources, request_id: int, result: BatchResult, seconds: float) -> None:
    """Enter one answer, ``seconds`` after its batch was put together, into the ledger and keep it for its job.

    All in one transaction; a second time changes nothing.
    """
    with resources.database.transaction() as tx:
        row = batches.lock_submitted(tx, request_id)
        if row is None:
            return
        if result.message is None:
            batches.fail_request(tx, row)
            return
        call = ledger.PaidCall(
            job_id=row.job_id,
            purpose=row.purpose,
            model=row.model,
            usage=result.usage,
            price=resources.settings.price_of(row.model),
            seconds=seconds,
            batched=True,
        )
        call_id = ledger.record_call(tx, row.namespace_id, call)
        batches.store_result(tx, row, result.message, call_id)
