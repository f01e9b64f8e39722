"""Storing what lies in this machine's session buffer. Whoever has the folder may; doing it twice stores it once."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from nexus_tasks.buffer import Damage, Entry, Segment, SessionBuffer
from nexus_tasks.errors import BufferError, InvalidInput
from nexus_tasks.services import buffer_entries, hook_events, observation
from nexus_tasks.services.buffer_entries import Call
from nexus_tasks.settings import get_settings
from nexus_tasks.storage import extractions, namespaces, sessions
from nexus_tasks.storage import messages as turns
from nexus_tasks.storage.messages import StoredMessages
from nexus_tasks.tasks import enqueue, extract_session
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.transcripts import events
from nexus_tasks.types import Message, Receipt, check_name, check_namespace

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0  # seconds between a client's looks at the folder
_looked_at = float("-inf")
_AT_ONCE = 100  # segments of one session that are stored in one transaction


@dataclass
class StoreReport:
    """What storing the buffer did. ``stored`` and ``duplicates`` count messages, ``entries`` what was acknowledged."""

    entries: int = 0
    stored: int = 0
    duplicates: int = 0
    enqueued: int = 0
    sessions: int = 0
    waiting: int = 0  # events that wait for their line in the agent's transcript
    busy: bool = False  # somebody else was storing, so this call did nothing
    damages: list[Damage] = field(default_factory=list)


@lru_cache(maxsize=1)
def _buffer(folder: str, fsync: Any, max_bytes: int) -> SessionBuffer:
    return SessionBuffer(folder, fsync=fsync, max_bytes=max_bytes)


def session_buffer() -> SessionBuffer:
    """This process's buffer, as the settings say."""
    settings = get_settings()
    return _buffer(str(settings.home / "buffer"), settings.buffer_fsync, settings.buffer_max_bytes)


def keep(
    namespace: str,
    session_key: str,
    messages: Sequence[Message],
    observers: Sequence[str] | None,
    *,
    observe: bool | None,
    end: bool,
) -> Receipt:
    """Keep one call of ``ingest`` until Postgres is back.

    Raises:
        BufferError: it could not be kept either.
    """
    said = [asdict(one) for one in messages]
    payload = {"messages": said, "observers": observers, "observe": observe, "end": end}
    global _looked_at
    _looked_at = float("-inf")
    session_buffer().append(namespace, session_key, buffer_entries.plain(payload), buffer_entries.INGEST)
    return Receipt(
        namespaces=(namespace,),
        session_keys=(session_key,),
        messages=len(messages),
        stored=0,
        duplicates=0,
        enqueued=0,
        buffered=len(messages),
    )


def store_pending() -> None:
    """Before a client's call: store what this machine has buffered.

    Looks at once after this process has buffered something, else every few seconds.

    Raises:
        StorageUnavailable: Postgres is still away.
    """
    global _looked_at
    if time.monotonic() - _looked_at < LOOK_EVERY:
        return
    try:
        if session_buffer().pending():
            store_buffer()
    except BufferError as error:  # what cannot be read now must not keep anyone from what can be stored
        log.warning("The session buffer is not stored yet: %s", error)
    _looked_at = time.monotonic()


def store_buffer(*, wait: bool = False) -> StoreReport:
    """Store every session of this machine's buffer, each in transactions of its own, and acknowledge what is stored.

    Args:
        wait: for whoever stores the folder just now, instead of leaving it to them.

    Raises:
        StorageUnavailable: Postgres does not answer; what was not stored stays.
        BufferError: the folder cannot be read or written.
    """
    buffer, report = session_buffer(), StoreReport()
    with buffer.storing(wait=wait) as mine:
        if not mine:
            report.busy = True
            return report
        recovery = buffer.recover()
        report.damages += recovery.damages
        whose = attrgetter("agent", "session")
        by_session = [list(found) for _, found in groupby(recovery.segments, whose)]
        for segments in sorted(by_session, key=_since):
            report.sessions += 1
            for first in range(0, len(segments), _AT_ONCE):
                _store(buffer, segments[first : first + _AT_ONCE], report)
    return report


def _since(segments: Sequence[Segment]) -> float:
    return min((entry.time for segment in segments for entry in segment.entries[:1]), default=0.0)


def _store(buffer: SessionBuffer, segments: Sequence[Segment], report: StoreReport) -> None:
    entries = [(segment, entry) for segment in segments for entry in segment.entries]
    waiting = set[int]()
    try:
        waiting = _store_entries(segments[0], [entry for _, entry in entries], report)
    except InvalidInput:  # one of them can never be stored: find out which, and store the others
        for segment, entry in entries:
            try:
                waiting |= _store_entries(segment, [entry], report)
            except InvalidInput as error:
                report.damages.append(buffer.refuse(segment, entry, error.message))
    done = [one for one in segments if waiting.isdisjoint(entry.entry_seq for entry in one.entries)]
    report.waiting += len(waiting)
    report.entries += buffer.acknowledge(done)


def _store_entries(segment: Segment, entries: Sequence[Entry], report: StoreReport) -> set[int]:
    """Store entries of one session in one transaction; returns the ``entry_seq`` of those that must wait."""
    namespace, session_key = check_namespace(segment.agent), check_name("session_key", segment.session)
    of_hook = [entry for entry in entries if entry.context_type == events.CONTEXT_TYPE]
    calls = buffer_entries.calls(segment.start_id, (entry for entry in entries if entry not in of_hook))
    turn = hook_events.read(_transcripts(), segment.start_id, of_hook)
    # A message that came after the end has opened the session again.
    ends = turn.ended if of_hook else bool(calls) and calls[-1].end
    done, flush, digest, to_observe, to_extract = list[StoredMessages](), list[tuple[int, str]](), False, False, False
    with runtime().database.transaction() as tx:
        known = namespaces.ensure(tx, namespace)

        def store(call: Call) -> bool:
            observers = known.observers if call.observers is None else call.observers
            now = datetime.fromtimestamp(call.time, UTC)
            done.append(turns.store(tx, known.id, session_key, call.messages, observers, now=now))
            return observation.note(tx, known, done[-1], call.observe)

        told = [*calls, buffer_entries.told(turn.messages)]
        for call in told:
            if call.messages:
                to_observe = store(call) or to_observe
        session = sessions.find(tx, known.id, session_key)
        lacking, waiting = hook_events.settle(tx, session.id if session else None, turn)
        if lacking:
            to_observe = store(buffer_entries.told(lacking)) or to_observe
        if ends and (session := sessions.find(tx, known.id, session_key)):
            digest = sessions.end(tx, session)
            flush = sessions.wanted_derivations(tx, session.id)
        session = sessions.find(tx, known.id, session_key)
        if session:
            # After the agent's turn; and when its tools had not answered then, with the next message.
            wanted = turn.over_at > 0 or ends
            to_extract = (wanted and extractions.want(tx, session, known_only=not of_hook)) or (
                bool(done) and extractions.release_held(tx, session.id)
            )
    hook_events.note(_transcripts(), turn)
    for stored in done:
        report.stored += len(stored.memory_ids)
        report.duplicates += stored.duplicates
        report.enqueued += enqueue.derivations(namespace, stored)
    if to_observe:
        report.enqueued += observation.ask(namespace, session_key)
    if to_extract:
        report.enqueued += extract_session.ask(namespace, session_key)
    if ends and session:
        report.enqueued += enqueue.ended(namespace, session_key, flush, digest=digest)
    return waiting


def _transcripts() -> str:
    return str(get_settings().home / "transcripts")
