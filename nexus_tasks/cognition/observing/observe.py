"""The job observe_session: write notes on a session's newest messages, before the notes must replace the messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nexus_tasks.cognition import prompts
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.model_call import ask
from nexus_tasks.cognition.observing import activation, condense, message_text
from nexus_tasks.cognition.observing.erasures import discarding_erased_notes
from nexus_tasks.cognition.observing.sources import with_sources
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import InvalidAnswer, Refused
from nexus_tasks.llm import observation_log
from nexus_tasks.llm.answers import Observed, ObserveMaterial, PromptLine
from nexus_tasks.llm.base import ModelRequest
from nexus_tasks.settings import Settings
from nexus_tasks.storage import ledger, messages, observations, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationLog, SessionRow
from nexus_tasks.storage.observations import ObservedText
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import JobOutcome, clean_text

log = logging.getLogger(__name__)

# The numbers are chosen by hand, not measured.
MOST_BATCHES = 20  # batches per run. Another run does the rest, so other jobs do not wait for a whole backlog.
MOST_NOTES = 0.25  # the most tokens of the notes on a batch, as a share of the tokens of its messages
SHORT_NOTES = 100  # tokens; notes of this length are short enough, however short the messages are
MOST_READ = 2_000  # messages that are read for a batch. A batch of 10,000 tokens has at most about 1,400.


@dataclass(frozen=True, kw_only=True)
class ObservationBatch:
    """The next messages to observe, and the end of the notes on the messages before them.

    Attributes:
        seen: the session's log, as it was when the messages were read.
        from_seq: the seq (the position in the session) of the first message.
        said: the messages.
        previous: the last lines of the log and of the chunks that are not in the log yet.
        current_task: the agent's task, from the newest notes that name a task.
        noted: ids of the messages that ``previous`` cites.
    """

    seen: ObservationLog
    from_seq: int
    said: tuple[Memory, ...]
    previous: str
    current_task: str
    noted: frozenset[int] = frozenset()


def note_if_due(
    tx: Transaction, settings: Settings, session: SessionRow, *, by_default: bool, observe: bool | None
) -> bool:
    """Mark a session for observation when its unobserved messages make a batch.

    Args:
        by_default: the namespace's setting for observation.
        observe: the producer's new setting for the session. ``None`` leaves the session's setting unchanged.

    Returns:
        Whether this call marked the session. If so, the caller must enqueue the job ``observe_session``.
    """
    if observe is not None and session.observe is not observe:
        session.observe = observe
        tx.flush()
    if not is_observed(session, by_default=by_default):
        return False
    found = observations.ensure_log(tx, session)
    if found.observing != "idle" or not settings.observation_buffer_tokens:
        return False
    pending, more = _pending(tx, session, observations.last_observed_seq(tx, found))
    return is_due(settings, pending, urgent=False, more=more) and observations.want(tx, session.id, "observing")


def is_observed(session: SessionRow, *, by_default: bool) -> bool:
    """Whether a session is observed: the session's setting, or else the namespace's setting ``by_default``."""
    return by_default if session.observe is None else session.observe


def is_due(settings: Settings, pending: Sequence[Memory], *, urgent: bool, more: bool = False) -> bool:
    """Whether the pending messages (the messages after the last observation) make a batch.

    A batch is due when the pending messages have at least ``observation_buffer_tokens`` tokens (one interval). When a
    reader of the session waits (``urgent``), the pending messages must have more than one interval. The last interval
    then stays in the prompt word for word. With ``more``, further messages are pending that were not read. So many
    messages always make a batch.
    """
    interval, total = settings.observation_buffer_tokens, sum(map(message_text.tokens_of, pending))
    return more or total > interval if urgent else interval > 0 and (more or interval <= total)


def batch_of(settings: Settings, pending: Sequence[Memory], *, urgent: bool) -> tuple[Memory, ...]:
    """The messages of the next batch. No message is split. A message that is longer than a batch makes a batch alone.

    Unless ``urgent``, a batch has at most one interval of tokens, however many messages are pending. So a rerun asks
    the same question, although new messages came.
    """
    interval = settings.observation_buffer_tokens
    most = min(interval, settings.observation_max_batch_tokens)
    if urgent:
        total = sum(map(message_text.tokens_of, pending))
        most = min(max(total - interval, interval), settings.observation_max_batch_tokens)
    taken, used = 0, 0
    for message in pending:
        weight = message_text.tokens_of(message)
        if used and used + weight > most:
            break
        used += weight
        taken += 1
    return tuple(pending[:taken])


@dataclass(frozen=True, kw_only=True)
class ObservationRun:
    """The end of a run.

    Attributes:
        more: whether another run is due because batches are left.
        condense: whether the log has become so long that ``reflect_observations`` is due. The log is marked for it.
    """

    outcome: JobOutcome
    more: bool = False
    condense: bool = False


def observe(resources: Resources, job: JobContext, session_key: str, *, urgent: bool) -> ObservationRun:
    """Write notes on a session's unobserved messages, batch by batch. Each batch has a commit of its own.

    When the messages after the log are long enough, the run also moves the notes into the log, so that a session which
    nobody reads stays short.

    Args:
        urgent: whether a reader waits.

    Raises:
        InvalidAnswer: an answer is malformed, blank or mostly repetitions. Nothing of that answer was stored.
    """
    made = 0
    while True:
        with resources.database.transaction() as tx:
            batch = _next_batch(tx, resources.settings, job, session_key, urgent=urgent)
            if isinstance(batch, JobOutcome):
                status = "completed" if made and batch.status == "skipped" else batch.status
                outcome = JobOutcome(status=status, details={"chunks": made, **batch.details})
                condense_due = batch.status == "skipped" and _activate(tx, resources.settings, job, session_key)
                return ObservationRun(outcome=job.commit(tx, outcome), condense=condense_due)
            if made >= MOST_BATCHES:
                outcome = JobOutcome(status="completed", details={"chunks": made})
                condense_due = _activate(tx, resources.settings, job, session_key)
                return ObservationRun(outcome=job.commit(tx, outcome), more=True, condense=condense_due)
        with discarding_erased_notes(resources, job, batch.seen):
            noted = _note(resources, job, session_key, batch)
        with resources.database.transaction() as tx:
            job.still_mine()
            through = max(message.seq or 0 for message in batch.said)
            made += observations.store_chunk(tx, batch.seen, batch.from_seq, through, noted)
            ledger.delete_answers(tx, job.namespace_id, job.asked)
        job.asked.clear()


def _activate(tx: Transaction, settings: Settings, job: JobContext, session_key: str) -> bool:
    """Move the prepared notes into the log if this is due. The caller has locked the session and the log.

    Returns whether this call has marked the log for ``reflect_observations``.
    """
    session = sessions.get(tx, job.namespace_id, session_key)
    found = observations.ensure_log(tx, session)
    tail = activation.tail_of(tx, session.id, found.observed_through_seq)
    due = activation.due_update(tx, settings, found, tail.said, tail.unread)
    if due:
        activation.apply_update(tx, due)
        found = observations.ensure_log(tx, session)
    return condense.is_wanted(tx, settings, found) and observations.want(tx, session.id, "reflecting")


def _next_batch(
    tx: Transaction, settings: Settings, job: JobContext, session_key: str, *, urgent: bool
) -> ObservationBatch | JobOutcome:
    # Session and log stay locked until the caller's transaction ends. During the lock, no message of the session is
    # stored, and no reader moves chunks into the log. So no new work is missed when the state "idle" is stored.
    session = sessions.find(tx, job.namespace_id, session_key, lock=True)
    found = observations.find_log(tx, session.id, lock=True) if session else None
    if session is None or found is None:
        return JobOutcome(status="gone")
    if found.observing == "dead":
        return GAVE_UP
    reach = observations.last_observed_seq(tx, found)
    pending, more = _pending(tx, session, reach)
    if not is_due(settings, pending, urgent=urgent, more=more):
        observations.settle(tx, session.id, "observing")
        return JobOutcome(status="skipped", details={"through_seq": reach})
    ready = observations.chunks(tx, session.id)
    so_far = found.observations
    for chunk in ready:
        so_far = observation_log.append(so_far, chunk.observations)
    tasks = [found.current_task, *(chunk.current_task for chunk in ready)]
    previous = observation_log.last_lines(so_far, settings.previous_observer_tokens)
    return ObservationBatch(
        seen=found,
        from_seq=reach + 1,
        said=batch_of(settings, pending, urgent=urgent),
        previous=previous,
        current_task=next((task for task in reversed(tasks) if task), ""),
        noted=messages.cited_ids(tx, session.id, observation_log.sources(previous)),
    )


def _pending(tx: Transaction, session: SessionRow, reach: int) -> tuple[Sequence[Memory], bool]:
    """The first messages behind ``reach``, and whether there are more. A backlog may have 100,000 messages."""
    return messages.bounded(tx, session.id, reach, MOST_READ)


def _note(resources: Resources, job: JobContext, session_key: str, batch: ObservationBatch) -> ObservedText:
    """The model's notes on a batch. A batch in which nothing is said gets none, and the model is not asked."""
    said = [message for message in batch.said if message_text.text_of(message)]
    if not said:
        model = resources.model.model_for("observe")
        return ObservedText(observations="", current_task="", suggested_response="", made_by=model)
    answer = ask(resources, job, build_request(resources.settings, session_key, batch))
    return _bounded(resources, job, session_key, _notes_of(resources, answer, said), _most(batch.said))


def build_request(settings: Settings, session_key: str, batch: ObservationBatch) -> ModelRequest[Observed]:
    """The model request for a batch."""
    most_notes = _most(batch.said)
    # A batch of one message may be longer than the model's input. The model sees only the beginning of a long message.
    most = 4 * settings.observation_max_batch_tokens
    lines = tuple(
        PromptLine(
            id=message.id,
            author=message.author or "user",
            role=message.role or "user",
            content=shorten(text, most),
            occurred_at=message.occurred_at,
            time_zone=message.time_zone,
        )
        for message in batch.said
        if (text := message_text.text_of(message))
    )
    earlier = prompts.inert(observation_log.without_sources(batch.previous))
    before = f"<previous>\n{earlier or 'none'}\n</previous>\n"
    task = f" The current task was, as JSON: {prompts.as_json(batch.current_task)}" if batch.current_task else ""
    return ModelRequest(
        purpose="observe",
        instructions=prompts.instructions("observe"),
        transcript=before + prompts.transcript(lines),
        question=(
            f"{prompts.names(session=session_key)}\n"
            f"Write the observations of this session, within {most_notes} tokens ({4 * most_notes} characters).{task}"
        ),
        answer=Observed,
        material=ObserveMaterial(session_key=session_key, previous=batch.previous, lines=lines, noted=batch.noted),
        shared=False,
    )


def _notes_of(resources: Resources, answer: Observed, said: Sequence[Memory]) -> ObservedText:
    seqs = {message.id: message.seq or 0 for message in said}
    ends = list(dict.fromkeys((seqs[said[0].id], seqs[said[-1].id])))
    days = with_sources(answer.days, seqs, otherwise=ends)
    return ObservedText(
        observations=prompts.inert(clean_text(observation_log.format_days(days))),
        current_task=message_text.one_line(answer.current_task),
        suggested_response=message_text.one_line(answer.suggested_response),
        made_by=resources.model.model_for("observe"),
        said_at=said[-1].occurred_at,
    )


def _most(said: Sequence[Memory]) -> int:
    """The most tokens that the notes on these messages may have."""
    return max(math.floor(MOST_NOTES * sum(map(message_text.tokens_of, said))), SHORT_NOTES)


def _bounded(resources: Resources, job: JobContext, session_key: str, noted: ObservedText, most: int) -> ObservedText:
    """The notes within ``most`` tokens.

    The model is asked once to write notes that are too long again. If they are still too long, the least important
    notes are left out. Notes of the priority ``high`` always stay, so these alone may be longer than ``most``.
    """
    text = noted.observations
    if estimate_tokens(text) <= most:
        return noted
    try:
        text, _ = condense.shorter_part(resources, job, session_key, text, most, shares=condense.ASKED[:1])
    except (InvalidAnswer, Refused) as error:
        log.warning("The notes on session %r could not be made shorter: %s", session_key, error)
    text = observation_log.without_least_important(text, most)
    if estimate_tokens(text) > most:
        log.warning("The important notes on session %r alone are longer than %d tokens.", session_key, most)
    return replace(noted, observations=text)
