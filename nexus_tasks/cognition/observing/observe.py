"""observe_session: notes on messages that will soon be old, made before they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.observing import render
from nexus_tasks.cognition.resources import GAVE_UP, JobContext, Resources, ask
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Line, Observed, ObserveMaterial
from nexus_tasks.llm.base import Request
from nexus_tasks.settings import Settings
from nexus_tasks.storage import ledger, messages, observations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationLog, SessionRow
from nexus_tasks.storage.observations import ObservedText
from nexus_tasks.text import shorten
from nexus_tasks.types import JobOutcome, clean_text

MOST_BATCHES = 20  # per run; the rest is another run's, so that nobody waits long behind a backlog
LONGEST_TASK = 1_000  # characters of the current task and of the suggested response


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Messages that follow what is observed, and the log they follow."""

    seen: ObservationLog
    from_seq: int
    said: tuple[Memory, ...]
    previous: str
    current_task: str


def note(tx: Transaction, settings: Settings, session: SessionRow, *, by_default: bool, observe: bool | None) -> bool:
    """Look at a session after messages were stored in it; whether there is something to observe that nobody noted yet.

    Args:
        by_default: the namespace's own setting. observe: the producer's wish for the session; ``None``: as it was.
    """
    if observe is not None and session.observe is not observe:
        session.observe = observe
        tx.flush()
    if not is_observed(session, by_default=by_default):
        return False
    found = observations.ensure_log(tx, session)
    if found.observing != "idle":
        return False
    pending = _pending(tx, session, observations.last_observed_seq(tx, found))
    return is_due(settings, pending, urgent=False) and observations.want(tx, session.id, "observing")


def is_observed(session: SessionRow, *, by_default: bool) -> bool:
    """Whether a session's old messages are observed: as it says itself, else as its namespace does."""
    return by_default if session.observe is None else session.observe


def is_due(settings: Settings, pending: Sequence[Memory], *, urgent: bool) -> bool:
    """Whether messages behind the last observation make a batch: a whole interval or, when a reader waits, more."""
    interval, total = settings.observation_buffer_tokens, sum(map(render.weight, pending))
    return total > interval if urgent else 0 < interval <= total


def batch_of(settings: Settings, pending: Sequence[Memory], *, urgent: bool) -> tuple[Memory, ...]:
    """The messages of the next batch; none is split, and one that is too long alone is a batch of its own.

    In the background a batch is one interval, wherever the conversation ends meanwhile: a rerun asks the same again.
    """
    interval = settings.observation_buffer_tokens
    most = min(interval, settings.observation_max_batch_tokens)
    if urgent:
        total = sum(map(render.weight, pending))
        most = min(max(total - interval, interval), settings.observation_max_batch_tokens)
    taken, used = 0, 0
    for message in pending:
        weight = render.weight(message)
        if used and used + weight > most:
            break
        used += weight
        taken += 1
    return tuple(pending[:taken])


def observe(resources: Resources, job: JobContext, session_key: str, *, urgent: bool) -> tuple[JobOutcome, bool]:
    """Observe whole batches of a session, each committed on its own; and whether there are more than one run makes.

    Raises:
        InvalidAnswer: an answer is malformed, blank or repeats itself; nothing of it was stored.
    """
    made = 0
    while True:
        with resources.database.transaction() as tx:
            batch = _next(tx, resources.settings, job, session_key, urgent=urgent)
            if isinstance(batch, JobOutcome):
                status = "completed" if made and batch.status == "skipped" else batch.status
                outcome = JobOutcome(status=status, details={"chunks": made, **batch.details})
                return job.commit(tx, outcome), False
            if made >= MOST_BATCHES:
                outcome = JobOutcome(status="completed", details={"chunks": made})
                return job.commit(tx, outcome), True
        noted = _noted(resources, ask(resources, job, _request(resources.settings, session_key, batch)))
        with resources.database.transaction() as tx:
            job.still_mine()
            through = max(message.seq or 0 for message in batch.said)
            made += observations.store_chunk(tx, batch.seen, batch.from_seq, through, noted)
            ledger.delete_answers(tx, job.namespace_id, job.asked)
        job.asked.clear()


def _next(
    tx: Transaction, settings: Settings, job: JobContext, session_key: str, *, urgent: bool
) -> Batch | JobOutcome:
    # Locked: between this look and the note that nothing is to do nobody stores a message, and no reader moves chunks.
    session = sessions.find(tx, job.namespace_id, session_key, lock=True)
    found = observations.find_log(tx, session.id, lock=True) if session else None
    if session is None or found is None:
        return JobOutcome(status="gone")
    if found.observing == "dead":
        return GAVE_UP
    reach = observations.last_observed_seq(tx, found)
    pending = _pending(tx, session, reach)
    if not is_due(settings, pending, urgent=urgent):
        observations.settle(tx, session.id, "observing")
        return JobOutcome(status="skipped", details={"through_seq": reach})
    ready = observations.chunks(tx, session.id)
    so_far = found.observations
    for chunk in ready:
        so_far = observation_log.appended(so_far, chunk.observations)
    tasks = [found.current_task, *(chunk.current_task for chunk in ready)]
    return Batch(
        seen=found,
        from_seq=reach + 1,
        said=batch_of(settings, pending, urgent=urgent),
        previous=_end(so_far, settings.previous_observer_tokens),
        current_task=next((task for task in reversed(tasks) if task), ""),
    )


def _pending(tx: Transaction, session: SessionRow, reach: int) -> Sequence[Memory]:
    return messages.window(tx, session.id, reach, messages.UNBOUNDED_SEQ)


def _end(log: str, tokens: int) -> str:
    """The last whole lines of the log within ``tokens``."""
    if len(log) <= 4 * tokens:
        return log
    start = log.find("\n", len(log) - 4 * tokens - 1)
    return log[start + 1 :] if start >= 0 and tokens else ""


def _request(settings: Settings, session_key: str, batch: Batch) -> Request[Observed]:
    # A message that fills a batch alone may be longer than a model reads: it is shown its beginning.
    most = 4 * settings.observation_max_batch_tokens
    lines = tuple(
        Line(
            id=message.id,
            author=message.author or "user",
            role=message.role or "user",
            content=shorten(text, most),
            occurred_at=message.occurred_at,
        )
        for message in batch.said
        if (text := render.said(message))
    )
    before = f"<previous>\n{prompts.inert(batch.previous) or 'none'}\n</previous>\n"
    task = f" The current task was: {prompts.inert(batch.current_task)}" if batch.current_task else ""
    return Request(
        purpose="observe",
        instructions=prompts.instructions("observe"),
        transcript=before + prompts.transcript(lines, cited=False),
        question=f"Write the observations of session {session_key}.{task}",
        answer=Observed,
        material=ObserveMaterial(session_key=session_key, previous=batch.previous, lines=lines),
        shared=False,
    )


def _noted(resources: Resources, answer: Observed) -> ObservedText:
    return ObservedText(
        observations=prompts.inert(clean_text(observation_log.written(answer.days))),
        current_task=one_line(answer.current_task),
        suggested_response=one_line(answer.suggested_response),
        made_by=resources.model.model_for("observe"),
    )


def one_line(text: str | None) -> str:
    """A model's word on the task or the response, on one line and not too long; empty when it had none."""
    return shorten(prompts.inert(" ".join(clean_text(text or "").split())), LONGEST_TASK)
