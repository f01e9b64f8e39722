"""Move prepared notes into a log: chunks of new notes, and a shorter version (reflection) of the log.

This module calls no model. The jobs call it after each piece of work, so a session that nobody reads stays short too.
Readers call it because they may come before the next job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nexus_tasks.cognition.observing import message_text
from nexus_tasks.llm import observation_log
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationChunk, ObservationLog, ObservationReflection
from nexus_tasks.text import estimate_tokens

# Both lengths are multiples of the log's length. Chosen by hand, not measured.
TARGET = 0.75  # a shorter version of at most this length is short enough
PATIENCE = 1.25  # when a shorter version misses the target, the next job waits until the log has grown to this length
MOST_READ = 10_000  # messages after a log that are read. A tail of 36,000 tokens has about 5,000 at most.


@dataclass(frozen=True, kw_only=True)
class LogState:
    """The columns of a log that an update changes. See :class:`ObservationLog`."""

    generation: int
    observations: str
    current_task: str
    suggested_response: str
    current_task_at: datetime | None
    suggested_response_at: datetime | None
    observed_through_seq: int
    rewritten: int
    reflect_from_tokens: int


@dataclass(frozen=True, kw_only=True)
class LogUpdate:
    """An update of the log ``seen`` to the state ``now``.

    Attributes:
        appended: whether chunks of notes were appended.
        replaced: the log that a shorter version has replaced. ``None`` when no shorter version is in ``now``.
    """

    seen: ObservationLog
    now: LogState
    appended: bool
    replaced: LogState | None

    @property
    def condensed(self) -> bool:
        """Whether a shorter version replaced the beginning of the log."""
        return self.replaced is not None


def state_of(found: ObservationLog) -> LogState:
    """The state of a stored log."""
    return LogState(**{name: getattr(found, name) for name in LogState.__annotations__})


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The messages after a log.

    Attributes:
        said: the newest of them, at most 10,000 messages with at most 16 MB of text.
        unread: the older ones, as (seq, about the number of tokens).
    """

    said: Sequence[Memory]
    unread: Sequence[tuple[int, int]] = ()


def tail_of(tx: Transaction, session_id: int, through: int) -> Tail:
    """Read the messages behind the seq ``through``."""
    said, more = messages.bounded(tx, session_id, through, MOST_READ, newest=True)
    return Tail(said=said, unread=messages.unread(tx, session_id, through, said[0].seq or 0) if more else ())


def total_tokens(said: Iterable[Memory]) -> int:
    """The tokens of messages as a reader sees them."""
    return sum(map(message_text.tokens_of, said))


def due_update(
    tx: Transaction,
    settings: Settings,
    found: ObservationLog,
    tail: Sequence[Memory],
    unread: Sequence[tuple[int, int]] = (),
) -> LogUpdate | None:
    """The update of the log that is due now. ``None`` when no update is due, or when its text is not prepared yet.

    Args:
        found: the log.
        tail: the messages after the log.
        unread: those of them that were not read (see :class:`Tail`).
    """
    before = now = state_of(found)
    weights = [*unread, *((message.seq or 0, message_text.tokens_of(message)) for message in tail)]
    if sum(weight for _, weight in weights) >= min(
        settings.observation_message_tokens, settings.observation_block_after_tokens
    ):
        ready = observations.chunks(tx, found.session_id)
        now = _with_chunks(now, _chunks_to_take(ready, now.observed_through_seq, settings, weights))
    appended, replaced = now != before, None
    if estimate_tokens(now.observations) >= settings.reflection_observation_tokens:
        shorter = observations.usable_reflection(tx, found)
        if shorter:
            now, replaced = _with_reflection(now, shorter, appended=appended), now
    return LogUpdate(seen=found, now=now, appended=appended, replaced=replaced) if now != before else None


def apply_update(tx: Transaction, update: LogUpdate, **columns: str) -> bool:
    """Make the log's next generation. Return ``False`` when another run has made it, and then change nothing.

    Args:
        columns: further columns of the log to set in the same statement.
    """
    done = observations.activate(tx, update.seen, **update.now.__dict__, **columns)
    if done and update.appended:
        observations.drop_chunks(tx, update.seen.session_id, update.now.observed_through_seq)
    if done and update.replaced:
        observations.drop_reflection(tx, update.seen.session_id)
        observations.keep_earlier(
            tx,
            update.seen,
            update.now.generation,
            update.replaced.observations,
            through=update.replaced.observed_through_seq,
            condensed_length=len(update.now.observations),
        )
    return done


def is_condensing_due(settings: Settings, log: ObservationLog | LogState) -> bool:
    """Whether the log is long enough that a job should prepare a shorter version."""
    least = settings.reflection_buffer_activation * settings.reflection_observation_tokens
    return estimate_tokens(log.observations) >= max(least, log.reflect_from_tokens, 1)


def _chunks_to_take(
    ready: Sequence[ObservationChunk], through: int, settings: Settings, weights: Sequence[tuple[int, int]]
) -> tuple[ObservationChunk, ...]:
    """The next consecutive chunks to append to the log.

    The function stops when the messages after the chosen chunks have at most ``observation_buffer_tokens`` tokens.
    These messages stay in the prompt word for word.
    """
    chosen: list[ObservationChunk] = []
    for chunk in ready:
        left = sum(weight for seq, weight in weights if seq > through)
        if chunk.from_seq != through + 1 or left <= settings.observation_buffer_tokens:
            break
        chosen.append(chunk)
        through = chunk.through_seq
    return tuple(chosen)


def _with_chunks(log: LogState, chosen: Sequence[ObservationChunk]) -> LogState:
    if not chosen:
        return log
    text = log.observations
    for chunk in chosen:
        text = observation_log.append(text, chunk.observations)
        log = _with_task(log, chunk)
    return replace(log, generation=log.generation + 1, observations=text, observed_through_seq=chosen[-1].through_seq)


def _with_task(log: LogState, newer: ObservationChunk | ObservationReflection) -> LogState:
    """The log with the task and the suggested response of newer notes, if these notes name them."""
    if newer.current_task:
        log = replace(log, current_task=newer.current_task, current_task_at=newer.said_at)
    if newer.suggested_response:
        log = replace(log, suggested_response=newer.suggested_response, suggested_response_at=newer.said_at)
    return log


def _with_reflection(log: LogState, ready: ObservationReflection, *, appended: bool) -> LogState:
    """Replace the beginning of the log with the shorter version ``ready``. Notes that ``ready`` does not cover stay.

    Args:
        appended: whether ``log`` is a generation that is not stored yet, because chunks were just appended.
    """
    text = observation_log.append(
        ready.observations, observation_log.text_after(log.observations, ready.covered_length)
    )
    if log.generation == ready.base_generation:  # else newer notes were appended, with a newer task
        log = _with_task(log, ready)
    missed = len(ready.observations) > TARGET * ready.covered_length
    generation = log.generation if appended else log.generation + 1
    return replace(
        log,
        generation=generation,
        observations=text,
        rewritten=generation,
        reflect_from_tokens=math.ceil(PATIENCE * estimate_tokens(text)) if missed else 0,
    )
