"""Send model requests through the provider's message batches: at half the price, with answers within a day.

A job of urgency ``dream`` stores its request and waits. One job per namespace submits the stored requests and collects
the answers. That job stores the result of each step before the next step starts, so its process may die at any point:

1. The job puts the batch together in Postgres, submits the batch, and stores the id that the provider gives to the
   batch. When a rerun finds a batch that an earlier run began to submit, and that has no id, it first asks the provider
   for recent batches of the same size. If Postgres does not know one of these batches, the earlier run submitted it,
   and the rerun stores its id. If Postgres knows all of them, the rerun submits the batch again.
2. One transaction enters an answer in the ledger and stores the answer for its job. Fetching the results a second time
   changes nothing.
3. When a batch has ended without an answer to a request, the request's job calls the model live. So it does when the
   batch is refused, or cannot be submitted within ``PATIENCE``. When the provider has no message batches at all, the
   next requests of the namespace go live at once, for a day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nexus_tasks.cognition import budget
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import AwaitsBatch, Erased, JobError, Misconfigured, OverBudget, Throttled, Transient
from nexus_tasks.llm.base import (
    AnswerT,
    BatchItemResult,
    BatchProvider,
    Completion,
    LanguageModel,
    ModelRequest,
    NoBatches,
    Purpose,
)
from nexus_tasks.settings import Settings
from nexus_tasks.storage import batches, ledger, memories
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import BatchRequest, MessageBatch

log = logging.getLogger(__name__)

PURPOSES: frozenset[Purpose] = frozenset(("digest", "reflect"))  # purposes whose requests may go to a message batch
# For this many seconds, a stored request waits until ``batch_threshold`` requests make a batch. After the wait, the
# request's job calls the model live.
PATIENCE = 600.0
POLL = 60.0  # seconds between two polls of a batch (chosen by hand, not measured)
RARE_POLL = 600.0  # seconds between two polls of a batch that no job waits for any more (chosen by hand)
RETRY = 30.0  # seconds between two attempts to submit a batch (chosen by hand, not measured)
LONGEST = 25 * 3_600.0  # seconds; a batch ends within 24 hours, so after this time its requests go live
FORGOTTEN = 29 * 86_400.0  # seconds for which the provider keeps the results of a batch
REFUSAL_DAYS = 1.0  # for so long requests go live at once after a provider had no message batches
# The largest allowed difference between the clocks of Postgres and of the provider. Chosen by hand, not measured.
CLOCK_SKEW = timedelta(minutes=5)


# --- the job that asks ------------------------------------------------------------------------------------------------
def find_answer(
    resources: Resources, job: JobContext, provider: BatchProvider, request: ModelRequest[AnswerT], request_hash: str
) -> Completion[AnswerT] | None:
    """Return the answer that a message batch brought to ``request``; ``None`` when the caller must call the model live.

    Raises:
        AwaitsBatch: the request is in a batch, or is stored for the next batch.
        OverBudget: the namespace's budget for the day does not allow the request.
        Erased: the request shows a memory that has been erased.
    """
    day_budget = job.budget() if job.urgency == "dream" else None
    with budget.waking_cheaper_jobs(job), resources.database.transaction() as tx:
        row = batches.lock_request(tx, job.namespace_id, request_hash)
        if row is None:
            if job.urgency != "dream" or batches.are_refused(tx, job.namespace_id):
                return None
            if not memories.lock_existing(tx, job.rests_on):
                raise Erased
            batches.queue_request(
                tx,
                job.namespace_id,
                _queued_row(resources, job, provider, request, request_hash)
                | {"hold_id": budget.hold_for_batch(tx, resources, job, request, budget=day_budget)},
            )
        elif row.state == "answered":
            return _take_answer(tx, job, provider, request, row)
        elif row.state == "failed":
            batches.remove_request(tx, row)
            return None
        elif row.state == "abandoned":
            return None
        elif batches.is_overdue(tx, row, unsubmitted=2 * PATIENCE, unanswered=LONGEST + PATIENCE):
            # The job that submits and collects does this earlier, but its kind may be paused.
            if row.state == "queued":
                batches.remove_request(tx, row)
            else:
                batches.abandon_request(tx, row)
            return None
        elif job.urgency == "live":
            if row.state == "queued":
                batches.remove_request(tx, row)
            else:
                batches.set_unwanted(tx, row)
            return None
        elif not row.wanted:
            # An erasure leaves a request that was sent, without its sources. No later erasure would find the answer.
            if not memories.lock_existing(tx, job.rests_on):
                raise Erased
            batches.want_again(tx, row, sorted(job.rests_on))
    job.queued()
    raise AwaitsBatch


def _queued_row(
    resources: Resources, job: JobContext, provider: BatchProvider, request: ModelRequest[Any], request_hash: str
) -> dict[str, Any]:
    return {
        "request_hash": request_hash,
        "job_id": job.job_id,
        "purpose": request.purpose,
        "model": resources.model.model_for(request.purpose),
        "params": provider.item_params(request),
        # All that the job has read: the prompt of a digest has the text of the digest before it, too.
        "sources": sorted(job.rests_on),
    }


def _take_answer(
    tx: Transaction, job: JobContext, provider: BatchProvider, request: ModelRequest[AnswerT], row: BatchRequest
) -> Completion[AnswerT]:
    """Read the answer in ``row``. The answer is saved until its job commits, as after a live call."""
    completion = provider.completion_of(row.result or {}, request, row.model)
    # When a memory in the prompt has been erased, the answer is not saved: the job's commit raises Erased in any case.
    if completion.answer is not None and memories.lock_existing(tx, job.rests_on):
        ledger.save_answer(tx, job.namespace_id, row.request_hash, completion.answer.model_dump(mode="json"))
    elif completion.fault and row.call_id is not None:
        ledger.record_fault(tx, row.call_id, completion.fault)
    batches.remove_request(tx, row)
    return completion


# --- the job that submits and collects --------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """The progress of a namespace's message batches.

    Attributes:
        back: whether waiting jobs can continue now.
        seconds: seconds until the next run is due; ``None`` when no request is stored and no batch is under way.
        detail: a text that says how many batches are under way and how many requests are stored.
    """

    back: bool
    seconds: float | None
    detail: str = ""


def batch_provider(model: LanguageModel) -> BatchProvider | None:
    """The message batches of ``model``: at most one of its providers has message batches."""
    return next((found for purpose in sorted(PURPOSES) if (found := model.batches_for(purpose))), None)


def advance(resources: Resources, namespace_id: int, still_mine: Callable[[], None]) -> BatchProgress:
    """Take each of a namespace's batches to its next step, and make a new batch when enough requests are stored.

    No error of the provider ends this function. The step that failed is repeated later. Requests that have waited for
    too long meanwhile go live, whatever the provider says.

    Args:
        still_mine: a function that raises when the run has lost its claim.
    """
    provider = batch_provider(resources.model)
    if provider is None:
        return _advance_to_the_end(resources, namespace_id, still_mine)
    back = False
    with resources.database.transaction() as tx:
        under_way, now = batches.under_way(tx, namespace_id), batches.database_time(tx)
    for batch in under_way:
        if batch.due_at <= now:
            still_mine()
            back |= _advance_batch(resources, provider, batch, now)
    with resources.database.transaction() as tx:
        queued, oldest = batches.count_queued(tx, namespace_id)
        drawn = batches.assemble(tx, namespace_id) if queued >= resources.settings.batch_threshold else None
        if drawn is None and oldest and batches.database_time(tx) - oldest >= timedelta(seconds=PATIENCE):
            back |= batches.give_up_queued(tx, namespace_id) > 0
    if drawn is not None:
        still_mine()
        back |= _submit(resources, provider, drawn)
    return _progress(resources, namespace_id, back)


def _advance_to_the_end(resources: Resources, namespace_id: int, still_mine: Callable[[], None]) -> BatchProgress:
    """Let all requests go live, because the deployment has changed to a model without batches.

    While Claude's credentials are there, batches under way are cancelled, and the ledger gets what they have cost.
    """
    former = _former_provider(resources.settings)
    with resources.database.transaction() as tx:
        under_way, now = batches.under_way(tx, namespace_id), batches.database_time(tx)
        back = batches.give_up_queued(tx, namespace_id) > 0
        for batch in under_way:
            back |= batches.abandon(tx, batch.id)
            if former is None or batch.api_id is None:
                batches.close_batch(tx, batch.id)
    for batch in under_way:
        if former is not None and batch.api_id is not None and batch.due_at <= now:
            still_mine()
            back |= _advance_batch(resources, former, batch, now)
    return _progress(resources, namespace_id, back)


def _former_provider(settings: Settings) -> BatchProvider | None:
    from nexus_tasks.llm.anthropic import AnthropicModel, credentials_found

    with suppress(Misconfigured):
        if credentials_found():
            return AnthropicModel(settings).batches_for("digest")
    return None


def _progress(resources: Resources, namespace_id: int, back: bool) -> BatchProgress:
    with resources.database.transaction() as tx:
        under_way, now = batches.under_way(tx, namespace_id), batches.database_time(tx)
        queued, oldest = batches.count_queued(tx, namespace_id)
    due_in = [max((batch.due_at - now).total_seconds(), 1.0) for batch in under_way]
    if oldest:
        due_in.append(max(PATIENCE - (now - oldest).total_seconds(), 1.0))
    detail = (
        f"{len(under_way)} batches under way, {queued} of {resources.settings.batch_threshold} requests for the next"
    )
    return BatchProgress(back=back, seconds=min(due_in) if due_in else None, detail=detail)


def _advance_batch(resources: Resources, provider: BatchProvider, batch: MessageBatch, now: datetime) -> bool:
    """Submit a batch, or collect the results of a batch that has ended. Return whether waiting jobs can continue."""
    age = (now - batch.created_at).total_seconds()
    if age > FORGOTTEN:
        with resources.database.transaction() as tx:
            batches.close_batch(tx, batch.id)
        return True
    if batch.api_id is None:
        return _submit(resources, provider, batch)
    try:
        ended = provider.has_ended(batch.api_id)
        if ended:
            return _collect(resources, provider, batch, age)
        if ended is None:  # The provider does not know the batch any more.
            with resources.database.transaction() as tx:
                batches.close_batch(tx, batch.id)
            return True
        _cancel_unwanted(resources, provider, batch)
    except JobError as error:
        log.warning("Message batch %s cannot be read, it is tried again: %s", batch.api_id, error)
    with resources.database.transaction() as tx:
        batches.check_later(tx, batch.id, POLL if age <= LONGEST else RARE_POLL)
        # A batch ends within a day. When its results cannot be had by then, its requests go live.
        return age > LONGEST and batches.abandon(tx, batch.id)


def _cancel_unwanted(resources: Resources, provider: BatchProvider, batch: MessageBatch) -> None:
    """Cancel a batch that no job waits for, for example because its namespace was erased."""
    assert batch.api_id is not None
    with resources.database.transaction() as tx:
        if batch.cancelled_at is not None or batches.is_wanted(tx, batch.id):
            return
    provider.cancel(batch.api_id)
    with resources.database.transaction() as tx:
        batches.note_cancelled(tx, batch.id)


def _submit(resources: Resources, provider: BatchProvider, batch: MessageBatch) -> bool:
    """Submit a batch, and store the id that the provider gives to the batch.

    When an earlier submission may have arrived, the provider is asked first. It may have arrived when the run was cut
    off before it stored the id, or when the connection failed.

    Returns:
        Whether waiting jobs can continue, because their requests go live.
    """
    found = None
    if batch.items is not None:
        try:
            submitted = provider.submitted_since(batch.created_at - CLOCK_SKEW, batch.items)
        except JobError as error:
            return _submit_later(resources, batch, error, uncertain=True)
        with resources.database.transaction() as tx:
            known = batches.known_api_ids(tx) | set(batch.rejected)
        found = next((api_id for api_id in reversed(submitted) if api_id not in known), None)
    api_id = found
    if api_id is None:
        with resources.database.transaction() as tx:
            # Requests whose text was erased, or that no job wants any more, are not sent.
            items = {f"{batch.token}-{row.id}": row.params for row in batches.sendable_requests(tx, batch.id)}
            if not items:
                batches.close_batch(tx, batch.id)
                return False
            batches.begin_submission(tx, batch.id, len(items))
        try:
            api_id = provider.submit(items)
        except JobError as error:
            return _not_submitted(resources, batch, error)
    with resources.database.transaction() as tx:
        called = batches.record_api_id(tx, batch.id, api_id, poll_in=POLL)
    if called != api_id and found is None:
        # Another run has submitted the same batch and stored its id first. This happens when the sweep took this run
        # for dead and returned the job to the queue.
        with suppress(JobError):
            provider.cancel(api_id)
    return False


def _not_submitted(resources: Resources, batch: MessageBatch, error: JobError) -> bool:
    """Decide what happens to a batch whose submission failed. Return whether waiting jobs can continue."""
    if isinstance(error, Throttled | OverBudget):
        return _submit_later(resources, batch, error, uncertain=False)
    if isinstance(error, Transient):
        return _submit_later(resources, batch, error, uncertain=True)
    log.warning("A message batch was refused, its %s requests go live: %s", batch.items or "", error)
    with resources.database.transaction() as tx:
        if isinstance(error, NoBatches):
            batches.refuse_batches(tx, batch.namespace_id, days=REFUSAL_DAYS)
            batches.give_up_queued(tx, batch.namespace_id)
        batches.close_batch(tx, batch.id)
    return True


def _submit_later(resources: Resources, batch: MessageBatch, error: JobError, *, uncertain: bool) -> bool:
    """Try a submission again later. Past their patience, the requests go live.

    Args:
        uncertain: whether the provider may have accepted the batch.

    Returns:
        Whether waiting jobs can continue.
    """
    with resources.database.transaction() as tx:
        oldest, now = batches.oldest_request(tx, batch.id), batches.database_time(tx)
        left = PATIENCE - (now - oldest).total_seconds() if oldest else 0.0
        if left > 0:
            if not uncertain:
                batches.submission_refused(tx, batch.id)
            batches.check_later(tx, batch.id, min(max(error.wait_seconds(now.timestamp()), RETRY), left))
            return False
        log.warning("A message batch could not be submitted for %.0f s, its requests go live: %s", PATIENCE, error)
        if not uncertain:
            batches.close_batch(tx, batch.id)
            return True
        batches.check_later(tx, batch.id, RARE_POLL)
        return batches.abandon(tx, batch.id)


def _collect(resources: Resources, provider: BatchProvider, batch: MessageBatch, seconds: float) -> bool:
    """Store the results of a batch that has ended, and close the batch. Return whether waiting jobs can continue.

    Args:
        seconds: seconds since the creation of the batch.

    Raises:
        Transient: the list of results lacks items. Those that came are stored.
    """
    assert batch.api_id is not None
    lines, ours = 0, set[str]()
    with resources.database.transaction() as tx:
        # A result that names a request of another batch, or none, is left out.
        asked = {f"{batch.token}-{row.id}": row.id for row in batches.outstanding_requests(tx, batch.id)}
    for result in provider.results(batch.api_id):
        lines += bool(result.custom_id)  # without a name it is no result, but for example the error of a gateway
        if result.custom_id.startswith(f"{batch.token}-"):
            ours.add(result.custom_id)
        if result.custom_id in asked:
            _store_result(resources, asked[result.custom_id], result, seconds)
    if len(ours) < (batch.items or 0) and (ours or not lines):
        # Each item has a result, also one that failed. So a gateway has cut the list off without an error. What it left
        # out is paid for, and would be asked again.
        raise Transient(f"The results of a message batch have {len(ours):,} of {batch.items:,} items.")
    with resources.database.transaction() as tx:
        if not ours:
            # No result has our token, so the id names a batch of another deployment. A rerun took that batch for ours,
            # because both batches have the same size.
            batches.reject_api_id(tx, batch)
            return False
        batches.close_batch(tx, batch.id)
    return True


def _store_result(resources: Resources, request_id: int, result: BatchItemResult, seconds: float) -> None:
    """Enter one answer in the ledger and store the answer for its job, in one transaction.

    A second call for the same request changes nothing.

    Args:
        seconds: seconds from the creation of the batch to the collection of its results.
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
    resources.note_call(call)
