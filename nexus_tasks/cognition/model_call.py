"""Ask the model under a budget. Enter each call in the ledger. Use a saved answer again without a call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pydantic import ValidationError

from nexus_tasks import tracing
from nexus_tasks.cognition import budget, message_batches, prompts
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import Erased, InvalidAnswer, JobError, Refused, StorageMisconfigured, Transient
from nexus_tasks.llm.base import AnswerT, Completion, ModelRequest
from nexus_tasks.storage import ledger

log = logging.getLogger(__name__)

# How long, and how often, an answer is tried to be stored while Postgres is away. Chosen by hand, not measured.
PATIENCE, TRY_AGAIN_AFTER = 20.0, 0.5  # seconds


def ask(
    resources: Resources,
    job: JobContext,
    request: ModelRequest[AnswerT],
    *,
    on_text: Callable[[str], None] | None = None,
) -> AnswerT:
    """Return the model's validated answer to ``request``, which the namespace's instructions are added to.

    1. An earlier run of the job, or a dry run, may have saved the answer to this request. The saved answer costs
       nothing.
    2. A request of the purpose ``digest`` or ``reflect`` may go to a message batch (:mod:`message_batches`), which
       costs half the price.
    3. Otherwise this function calls the model under the namespace's budget. Directly after the call, one transaction
       enters the call in the ledger and saves a valid answer.

    Args:
        on_text: gets the pieces of the reply as they arrive. It gets nothing when the answer was saved before.

    Raises:
        InvalidAnswer: the answer does not fit its schema, or was cut off.
        Refused: the model refused.
        BudgetHeld: other calls hold the rest of the namespace's budget for the day.
        OverBudget: the namespace's budget for the day does not allow the call.
        Erased: the request shows a memory that has been erased.
        AwaitsBatch: the request waits for the answer of a message batch.
        JobError: any error of :meth:`LanguageModel.complete`.
    """
    request = prompts.with_instructions(request, job.instructions)
    model = resources.model.model_for(request.purpose)
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": resources.model.provider_for(request.purpose),
        "gen_ai.request.model": model,
        "nexus.model.purpose": request.purpose,
    }
    with tracing.span(f"chat {model}", about, kind="client") as span:
        try:
            return _ask(resources, job, request, model, span, on_text)
        except JobError as error:
            error.quoted_from = frozenset(job.rests_on)
            raise


def _ask(
    resources: Resources,
    job: JobContext,
    request: ModelRequest[AnswerT],
    model: str,
    span: tracing.Span,
    on_text: Callable[[str], None] | None,
) -> AnswerT:
    request_hash = request.hash(model)
    job.asked.append(request_hash)
    job.rests_on.update(request.material.rests_on)
    with resources.database.reading() as tx:
        saved, stored = ledger.find_answer(tx, job.namespace_id, request_hash)
    span.set("nexus.model.saved", saved is not None)
    if saved is not None:
        try:
            return request.answer.model_validate(saved)
        except ValidationError as error:  # The hash covers the schema, so a saved answer that does not fit is a bug.
            raise InvalidAnswer("A saved answer does not fit its schema.") from error
    if request.purpose in message_batches.PURPOSES and (stored or job.urgency == "dream"):
        provider = resources.model.batches_for(request.purpose)
        if provider is not None:
            batched = message_batches.find_answer(resources, job, provider, request, request_hash)
            if batched is not None:
                span.set("nexus.model.batched", True)
                return _answer_or_raise(batched)
    with budget.hold_for_call(resources, job, request):
        model_of = resources.model
        completion = model_of.complete(request) if on_text is None else model_of.stream(request, on_text)
        _enter_in_ledger(resources, job, request, request_hash, completion, span)
    return _answer_or_raise(completion)


def _enter_in_ledger(
    resources: Resources,
    job: JobContext,
    request: ModelRequest[AnswerT],
    request_hash: str,
    completion: Completion[AnswerT],
    span: tracing.Span,
) -> None:
    """Record the cost of the call, and save the answer.

    The answer is paid. So a short outage of Postgres, such as a restart, is waited out.
    """
    call = ledger.PaidCall(
        job_id=job.job_id,
        purpose=request.purpose,
        model=completion.model,
        usage=completion.usage,
        price=resources.settings.price_of(resources.model.model_for(request.purpose)),
        seconds=completion.seconds,
        fault=completion.fault,
    )
    _describe(span, call)
    answer = completion.answer.model_dump(mode="json") if completion.answer is not None else None
    deadline, again = time.monotonic() + PATIENCE, False
    while True:
        try:
            with resources.database.transaction() as tx:
                sources_exist = ledger.record_call_and_answer(
                    tx,
                    job.namespace_id,
                    call,
                    request_hash=request_hash,
                    answer=answer,
                    rests_on=job.rests_on,
                    again=again,
                )
            break
        except Transient as error:
            if isinstance(error, StorageMisconfigured) or time.monotonic() >= deadline:
                raise
            if not again:
                log.warning("A model's answer could not be stored, it is tried again for %.0f s: %s", PATIENCE, error)
            again = True
            time.sleep(TRY_AGAIN_AFTER)  # Postgres does not tell when it is back
    resources.note_call(call)
    if not sources_exist:
        raise Erased


def _describe(span: tracing.Span, call: ledger.PaidCall) -> None:
    """Note the call's tokens and cost."""
    if not span.recording:
        return
    usage = call.usage
    span.set("gen_ai.response.model", call.model)
    # By the conventions of OpenTelemetry, the input includes the cached tokens.
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    span.set("gen_ai.usage.input_tokens", usage.input_tokens + cached)
    span.set("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", usage.cache_read_tokens)
    span.set("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens)
    span.set("nexus.model.cost_usd", float(call.row(0)["cost_usd"]))


def _answer_or_raise(completion: Completion[AnswerT]) -> AnswerT:
    if completion.answer is not None:
        return completion.answer
    if completion.fault == "refused":
        raise Refused("The model refused to answer.").quoting(completion.detail)  # it may quote the prompt
    raise InvalidAnswer(f"The model's answer is {completion.fault}. {completion.detail}".strip())
