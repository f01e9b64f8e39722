"""What thinks: storage, a model and an embedder. And asking the model so that no answer is paid for twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from nexus_tasks.cognition import budget, message_batches
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.errors import Erased, InvalidAnswer, Refused
from nexus_tasks.llm.base import AnswerT, Completion, LanguageModel, Request
from nexus_tasks.settings import Settings
from nexus_tasks.storage import ledger, memories
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.types import JobOutcome

# A job asked for work whose dead letter is still open: only a retry of that one does it.
GAVE_UP = JobOutcome(
    status="dead", details={"error": "An earlier job for this gave up: see `nexus jobs list --status dead`."}
)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The means of every job: all they know of the outside."""

    database: Database
    model: LanguageModel
    embedder: Embedder
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One run of a job, as cognition sees it.

    ``urgency`` is ``live`` when someone waits, ``dream`` when tonight will do, and empty when nobody has said: then
    nothing new goes to a batch, and what is in one is waited for. ``queued`` is called when a request has been written
    down for a batch. ``still_mine`` raises when the run has lost its claim; it is called before anything is committed.
    ``record`` writes the run row in the transaction that holds the effects. ``asked`` collects the hashes of the
    answers used; ``rests_on`` names every memory that the model is shown: nothing is kept of an answer to what was
    erased meanwhile.
    """

    namespace_id: int
    namespace: str
    job_id: str
    budget_usd: float | None  # per UTC day
    still_mine: Callable[[], None]
    record: Callable[[Transaction, JobOutcome], None]
    urgency: str = "live"
    queued: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)
    rests_on: set[int] = field(default_factory=set)

    def commit(self, tx: Transaction, outcome: JobOutcome) -> JobOutcome:
        """Write the run row and use up the answers, as the last step of the effects' transaction.

        Raises:
            Erased: something that the run has read is gone; it commits nothing and is tried again.
        """
        self.still_mine()
        if not memories.lock_existing(tx, self.rests_on):
            raise Erased
        if self.asked:
            ledger.delete_answers(tx, self.namespace_id, self.asked)
        self.record(tx, outcome)
        return outcome


def ask(resources: Resources, job: JobContext, request: Request[AnswerT]) -> AnswerT:
    """The model's validated answer to ``request``; one that was paid for before the run was cut off is used again.

    Every call that returns is entered into the ledger, and a valid answer saved, before anything else happens.

    Raises:
        InvalidAnswer: the answer does not fit, or was cut off.
        Refused: the model refused.
        OverBudget: the namespace's budget for the day does not allow the call.
        Erased: a memory that the request shows was erased meanwhile.
        AwaitsBatch: the answer comes through a message batch.
        JobError: whatever :meth:`LanguageModel.complete` raises.
    """
    model = resources.model.model_for(request.purpose)
    request_hash = request.hash(model)
    job.asked.append(request_hash)
    job.rests_on.update(request.material.rests_on)
    with resources.database.reading() as tx:
        saved = ledger.find_answer(tx, job.namespace_id, request_hash)
    if saved is not None:
        try:
            return request.answer.model_validate(saved)
        except ValidationError as error:  # saved by another version of the schema, which is part of the hash: a bug
            raise InvalidAnswer("A saved answer does not fit its schema.") from error
    if resources.model.batches is not None and request.purpose in message_batches.PURPOSES:
        back = message_batches.look(resources, job, resources.model.batches, request, request_hash)
        if back is not None:
            return _worth_something(back)
    with budget.within(
        resources.database,
        resources.settings,
        resources.model,
        job.namespace_id,
        job.budget_usd,
        request,
    ):
        completion = resources.model.complete(request)
        _enter(resources, job, request, request_hash, completion)
    return _worth_something(completion)


def _enter(
    resources: Resources,
    job: JobContext,
    request: Request[AnswerT],
    request_hash: str,
    completion: Completion[AnswerT],
) -> None:
    call = ledger.PaidCall(
        job_id=job.job_id,
        purpose=request.purpose,
        model=completion.model,
        usage=completion.usage,
        price=resources.settings.price_of(resources.model.model_for(request.purpose)),
        seconds=completion.seconds,
        fault=completion.fault,
    )
    answer = completion.answer.model_dump(mode="json") if completion.answer is not None else None
    with resources.database.transaction() as tx:
        there = ledger.record_call_and_answer(
            tx, job.namespace_id, call, request_hash=request_hash, answer=answer, rests_on=job.rests_on
        )
    if not there:
        raise Erased


def _worth_something(completion: Completion[AnswerT]) -> AnswerT:
    if completion.answer is not None:
        return completion.answer
    if completion.fault == "refused":
        raise Refused(f"The model refused to answer. {completion.detail}".strip())
    raise InvalidAnswer(f"The model's answer is {completion.fault}. {completion.detail}".strip())
