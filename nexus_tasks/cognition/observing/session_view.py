"""Read an observed session: update the log from prepared notes, and say which jobs are due.

This module calls no model. It reads the log first, and then the messages after the log. Stored messages do not change,
so the log and the messages fit together even when new messages are stored between the two reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.cognition.observing import condense, message_text, observe
from nexus_tasks.llm import observation_log
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationChunk, ObservationLog, ObservationReflection, SessionRow
from nexus_tasks.text import estimate_tokens

# One call reads the log at most this many times. The last view may lack a due update. Chosen by hand, not measured.
ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """An observed session: its log and the messages after the log.

    Attributes:
        observed_through: the seq (the position in the session) of the last message that the log covers.
        tail: the messages that the log does not cover.
        ask_observe: whether this read marked the session for ``observe_session``, so that the caller must enqueue the
            job.
        ask_reflect: whether this read marked the session for ``reflect_observations``, so that the caller must enqueue
            the job.
        observe_now: whether the caller should wait for ``observe_session``, because the job is due and the tail has at
            least ``observation_block_after_tokens`` tokens.
        reflect_now: whether the caller should wait for ``reflect_observations``, because the job is due and the log has
            at least ``reflection_block_after_tokens`` tokens.
        gave_up: whether a due job has a dead letter. Waiting for this job does not help.
    """

    session_key: str
    observed: bool
    generation: int = 0
    log: str = ""
    current_task: str = ""
    suggested_response: str = ""
    observed_through: int = 0
    tail: tuple[Memory, ...] = ()
    tail_tokens: int = 0
    ask_observe: bool = False
    ask_reflect: bool = False
    observe_now: bool = False
    reflect_now: bool = False
    gave_up: bool = False

    @property
    def log_tokens(self) -> int:
        """The estimated number of the log's tokens."""
        return estimate_tokens(self.log)


def current_view(tx: Transaction, settings: Settings, session: SessionRow, *, by_default: bool) -> SessionView:
    """Read the log and the messages after the log. When an update of the log is due, this function makes it first.

    Args:
        by_default: the namespace's setting for observation.
    """
    observed = observe.is_observed(session, by_default=by_default)
    found = observations.find_log(tx, session.id)
    if found is None:
        if observed:
            found = observations.ensure_log(tx, session)
        else:
            said = messages.window(tx, session.id, 0, messages.UNBOUNDED_SEQ)
            return SessionView(
                session_key=session.session_key, observed=False, tail=tuple(said), tail_tokens=_total_tokens(said)
            )
    for attempt in range(ATTEMPTS):
        tail = messages.window(tx, session.id, found.observed_through_seq, messages.UNBOUNDED_SEQ)
        update = due_update(tx, settings, found, tail) if attempt < ATTEMPTS - 1 else None
        if update is None:
            break
        # After this call the log is newer, because this reader or another reader has made the update.
        apply_update(tx, update)
        found = observations.find_log(tx, session.id)
        assert found is not None
    return _view(tx, settings, session, found, tail, observed=observed)


def _total_tokens(said: Sequence[Memory]) -> int:
    return sum(map(message_text.tokens_of, said))


@dataclass(frozen=True, kw_only=True)
class LogUpdate:
    """An update of the log ``seen``: chunks of notes to append, or a shorter version (reflection) of it."""

    seen: ObservationLog
    chunks: tuple[ObservationChunk, ...] = ()
    reflection: ObservationReflection | None = None


def due_update(tx: Transaction, settings: Settings, found: ObservationLog, tail: Sequence[Memory]) -> LogUpdate | None:
    """The update of the log that is due now. ``None`` when no update is due, or when its text is not prepared yet."""
    threshold = min(settings.observation_message_tokens, settings.observation_block_after_tokens)
    if _total_tokens(tail) >= threshold:
        chosen = _chunks_to_take(observations.chunks(tx, found.session_id), found.observed_through_seq, settings, tail)
        if chosen:
            return LogUpdate(seen=found, chunks=chosen)
    if estimate_tokens(found.observations) >= settings.reflection_observation_tokens:
        ready = observations.usable_reflection(tx, found)
        if ready:
            return LogUpdate(seen=found, reflection=ready)
    return None


def _chunks_to_take(
    ready: Sequence[ObservationChunk], through: int, settings: Settings, tail: Sequence[Memory]
) -> tuple[ObservationChunk, ...]:
    """The next consecutive chunks to append to the log.

    The function stops when the messages after the chosen chunks have at most ``observation_buffer_tokens`` tokens.
    These messages stay in the prompt word for word.
    """
    chosen: list[ObservationChunk] = []
    weights = [(message.seq or 0, message_text.tokens_of(message)) for message in tail]
    for chunk in ready:
        left = sum(weight for seq, weight in weights if seq > through)
        if chunk.from_seq != through + 1 or left <= settings.observation_buffer_tokens:
            break
        chosen.append(chunk)
        through = chunk.through_seq
    return tuple(chosen)


def apply_update(tx: Transaction, update: LogUpdate) -> bool:
    """Make the log's next generation. Return ``False`` when another reader has made it, and then change nothing."""
    seen = update.seen
    if update.reflection:
        return _apply_reflection(tx, seen, update.reflection)
    text, task, response = seen.observations, seen.current_task, seen.suggested_response
    for chunk in update.chunks:
        text = observation_log.append(text, chunk.observations)
        task, response = chunk.current_task or task, chunk.suggested_response or response
    through = update.chunks[-1].through_seq
    done = observations.activate(
        tx, seen, observations=text, current_task=task, suggested_response=response, observed_through_seq=through
    )
    if done:
        observations.drop_chunks(tx, seen.session_id, through)
    return done


def _apply_reflection(tx: Transaction, seen: ObservationLog, ready: ObservationReflection) -> bool:
    """Replace the beginning of the log with the shorter version ``ready``. Notes that ``ready`` does not cover stay."""
    text = observation_log.append(
        ready.observations, observation_log.text_after(seen.observations, ready.covered_length)
    )
    task, response = seen.current_task, seen.suggested_response
    if seen.generation == ready.base_generation:  # else newer notes were appended, with a newer task
        task, response = ready.current_task or task, ready.suggested_response or response
    missed = len(ready.observations) > condense.TARGET * ready.covered_length
    done = observations.activate(
        tx,
        seen,
        observations=text,
        current_task=task,
        suggested_response=response,
        rewritten=seen.generation + 1,
        reflect_from_tokens=math.ceil(condense.PATIENCE * estimate_tokens(text)) if missed else 0,
    )
    if done:
        observations.drop_reflection(tx, seen.session_id)
    return done


def _view(
    tx: Transaction,
    settings: Settings,
    session: SessionRow,
    found: ObservationLog,
    tail: Sequence[Memory],
    *,
    observed: bool,
) -> SessionView:
    weight, length = _total_tokens(tail), estimate_tokens(found.observations)
    reach = observations.last_observed_seq(tx, found)
    pending = [message for message in tail if (message.seq or 0) > reach]
    too_long = weight >= settings.observation_block_after_tokens
    observe_due = observed and observe.is_due(settings, pending, urgent=too_long)
    reflect_due = observed and condense.is_due(settings, found) and not observations.usable_reflection(tx, found)
    return SessionView(
        session_key=session.session_key,
        observed=observed,
        generation=found.generation,
        log=found.observations,
        current_task=found.current_task,
        suggested_response=found.suggested_response,
        observed_through=found.observed_through_seq,
        tail=tuple(tail),
        tail_tokens=weight,
        ask_observe=observe_due and observations.want(tx, session.id, "observing"),
        ask_reflect=reflect_due and observations.want(tx, session.id, "reflecting"),
        observe_now=observe_due and too_long and found.observing != "dead",
        reflect_now=reflect_due and length >= settings.reflection_block_after_tokens and found.reflecting != "dead",
        gave_up=(observe_due and found.observing == "dead") or (reflect_due and found.reflecting == "dead"),
    )
