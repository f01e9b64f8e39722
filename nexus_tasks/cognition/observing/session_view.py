"""Read an observed session: update the log from prepared notes, and say which jobs are due.

This module calls no model. It reads the log first, and then the messages after the log. Stored messages do not change,
so the log and the messages fit together even when new messages are stored between the two reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from nexus_tasks.cognition.observing import activation, observe
from nexus_tasks.llm import observation_log
from nexus_tasks.settings import Settings
from nexus_tasks.storage import messages, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, ObservationLog, SessionRow
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import CitedMemory


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """An observed session: its log and the messages after the log.

    Attributes:
        observed_through: the seq (the position in the session) of the last message that the log covers.
        tail: the messages that the log does not cover, or the newest of them (see :class:`activation.Tail`).
        unread: the number of older messages that the log does not cover either.
        cited: the messages that the log cites, by their seq.
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
    current_task_at: datetime | None = None
    suggested_response_at: datetime | None = None
    observed_through: int = 0
    tail: tuple[Memory, ...] = ()
    unread: int = 0
    tail_tokens: int = 0
    cited: Mapping[int, CitedMemory] = field(default_factory=dict)
    ask_observe: bool = False
    ask_reflect: bool = False
    observe_now: bool = False
    reflect_now: bool = False
    gave_up: bool = False

    @property
    def log_tokens(self) -> int:
        """The estimated number of the log's tokens."""
        return estimate_tokens(self.log)


def current_view(
    tx: Transaction, settings: Settings, session: SessionRow, *, by_default: bool, update: bool = True
) -> SessionView:
    """Read the log and the messages after the log. When an update of the log is due, this function makes it first.

    This function does not wait for a lock. While another transaction has locked the session or the log, nothing is
    stored and no job is marked. The view is then the log as it is stored. If that is too long, the view has the update
    nevertheless.

    Args:
        by_default: the namespace's setting for observation.
        update: whether to update the log and to mark jobs.
    """
    observed = observe.is_observed(session, by_default=by_default)
    found = observations.find_log(tx, session.id)
    if found is None and not observed:
        tail = activation.tail_of(tx, session.id, 0)
        return SessionView(
            session_key=session.session_key,
            observed=False,
            tail=tuple(tail.said),
            unread=len(tail.unread),
            tail_tokens=activation.total_tokens(tail.said),
        )
    view = _updated_view(tx, settings, session, found, observed=observed, update=update)
    return replace(view, cited=messages.cited(tx, session.id, observation_log.sources(view.log)))


def _updated_view(
    tx: Transaction,
    settings: Settings,
    session: SessionRow,
    found: ObservationLog | None,
    *,
    observed: bool,
    update: bool,
) -> SessionView:
    read = _read(tx, settings, session, found or _empty_log(session), observed=observed)
    if not update or (found and not read.writes):
        return read.view
    locked = observations.try_lock(tx, session)
    if locked is None:
        longest = (settings.observation_block_after_tokens, settings.reflection_block_after_tokens)
        too_long = read.view.tail_tokens >= longest[0] or read.view.log_tokens >= longest[1]
        return replace(read.updated if too_long else read.view, ask_observe=False, ask_reflect=False)
    if found is None or (found.generation, found.erasures) != read.read_at:
        read = _read(tx, settings, session, locked, observed=observed)
    return _write(tx, read)


def _empty_log(session: SessionRow) -> ObservationLog:
    """A log that is not stored."""
    texts = dict.fromkeys(("observations", "current_task", "suggested_response"), "")
    numbers = dict.fromkeys(("generation", "observed_through_seq", "rewritten", "reflect_from_tokens", "erasures"), 0)
    times = dict.fromkeys(("current_task_at", "suggested_response_at"))
    idle = {"observing": "idle", "reflecting": "idle"}
    return ObservationLog(namespace_id=session.namespace_id, session_id=session.id, **texts, **times, **numbers, **idle)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What a reader has read: the view as stored, and the view after the update that is due.

    ``asks`` are the columns of the log that mark due jobs. ``read_at`` are the log's generation and erasures.
    """

    found: ObservationLog
    view: SessionView
    update: activation.LogUpdate | None
    updated: SessionView
    asks: tuple[observations.Work, ...]
    read_at: tuple[int, int]

    @property
    def writes(self) -> bool:
        return self.update is not None or bool(self.asks)


def _read(tx: Transaction, settings: Settings, session: SessionRow, found: ObservationLog, *, observed: bool) -> _Read:
    tail = activation.tail_of(tx, session.id, found.observed_through_seq)
    due = activation.due_update(tx, settings, found, tail.said, tail.unread)
    now = due.now if due else activation.state_of(found)
    condensed = due is not None and due.condensed
    updated = _view(tx, settings, session, found, now, tail, condensed=condensed, observed=observed)
    asks: list[observations.Work] = ["observing"] if updated.ask_observe else []
    asks += ["reflecting"] if updated.ask_reflect else []
    stored = activation.state_of(found)
    view = _view(tx, settings, session, found, stored, tail, condensed=False, observed=observed) if due else updated
    return _Read(
        found=found,
        view=replace(view, ask_observe=False, ask_reflect=False),
        update=due,
        updated=updated,
        asks=tuple(asks),
        read_at=(found.generation, found.erasures),
    )


def _write(tx: Transaction, read: _Read) -> SessionView:
    """Make the update and mark the jobs, with one statement. The caller has locked the log."""
    if read.update:
        activation.apply_update(tx, read.update, **dict.fromkeys(read.asks, "wanted"))
    elif read.asks:
        observations.want(tx, read.found.session_id, *read.asks)
    return read.updated


def _view(
    tx: Transaction,
    settings: Settings,
    session: SessionRow,
    found: ObservationLog,
    now: activation.LogState,
    tail: activation.Tail,
    *,
    condensed: bool,
    observed: bool,
) -> SessionView:
    """The view of a log in the state ``now``, which may be newer than the stored log ``found``.

    Args:
        condensed: whether the stored shorter version is in the log ``now``.
    """
    reach = max(observations.last_observed_seq(tx, found), now.observed_through_seq)
    after = tuple(message for message in tail.said if (message.seq or 0) > now.observed_through_seq)
    unread = [(seq, tokens) for seq, tokens in tail.unread if seq > now.observed_through_seq]
    pending = [message for message in after if (message.seq or 0) > reach]
    weight, length = activation.total_tokens(after), estimate_tokens(now.observations)
    weight += sum(tokens for _, tokens in unread)
    too_long = weight >= settings.observation_block_after_tokens
    more = any(seq > reach for seq, _ in unread)
    observe_due = observed and observe.is_due(settings, pending, urgent=too_long, more=more)
    reflect_due = (
        observed
        and activation.is_condensing_due(settings, now)
        and (condensed or not observations.usable_reflection(tx, found))
    )
    return SessionView(
        session_key=session.session_key,
        observed=observed,
        generation=now.generation,
        log=now.observations,
        current_task=now.current_task,
        suggested_response=now.suggested_response,
        current_task_at=now.current_task_at,
        suggested_response_at=now.suggested_response_at,
        observed_through=now.observed_through_seq,
        tail=after,
        unread=len(unread),
        tail_tokens=weight,
        ask_observe=observe_due and found.observing == "idle",
        ask_reflect=reflect_due and found.reflecting == "idle",
        observe_now=observe_due and too_long and found.observing != "dead",
        reflect_now=reflect_due and length >= settings.reflection_block_after_tokens and found.reflecting != "dead",
        gave_up=(observe_due and found.observing == "dead") or (reflect_due and found.reflecting == "dead"),
    )
