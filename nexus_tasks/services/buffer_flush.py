"""Store this machine's session buffer in Postgres.

The session buffer is a folder of files that keep messages while Postgres is away. Any process of the machine may store
the buffer. Storing an entry a second time changes nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from nexus_tasks.buffer import Damage, Entry, Segment, SessionBuffer
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import (
    BufferError,
    ConfigurationError,
    InvalidInput,
    NamespaceMoved,
    NamespaceMoving,
    NotFound,
    StorageUnavailable,
    Transient,
)
from nexus_tasks.services import buffer_entries, hook_events
from nexus_tasks.services.buffer_entries import Call
from nexus_tasks.storage import erased_ids, namespaces, tenancy
from nexus_tasks.storage.translation import is_read_only
from nexus_tasks.transcripts import events
from nexus_tasks.types import Message, Receipt, as_stored, check_name, check_namespace

if TYPE_CHECKING:  # a search stores the buffer only when something waits in it
    from nexus_tasks.services.ingestion import SessionWriter

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0  # seconds; the client's calls check the buffer's folder at most once in this time
_BRIEFLY = "SET LOCAL lock_timeout = 1000"  # milliseconds; the longest wait of a call that is about something else
# A call that writes waits at most this number of seconds for another call that stores the buffer, and looks this often.
_PATIENCE, _POLL_EVERY = 1.0, 0.05
_MOST_CALLERS = 10_000  # a process remembers the times of the last looks of at most this number of callers
_AT_ONCE = 100  # the most segments (sealed files of the buffer) of one session that one transaction stores
# Bytes of segments that are read before they are stored: after an outage the buffer may be larger than the memory.
_READ_AT_ONCE = 16_000_000
_WHOSE = attrgetter("agent", "session", "start_id")


@dataclass
class StoreReport:
    """The result of storing the buffer.

    ``entries`` counts the entries that were deleted from the buffer. ``stored`` and ``duplicates`` count messages.
    ``enqueued`` counts the jobs that follow. ``damages`` are the entries that could not be read or stored.
    """

    entries: int = 0
    stored: int = 0
    duplicates: int = 0
    enqueued: int = 0
    sessions: int = 0
    waiting: int = 0  # events of a coding agent's hook whose message is not in the agent's transcript yet
    unknown: int = 0  # entries of a type that this release does not know; they wait for a newer release
    elsewhere: int = 0  # entries of namespaces that move to another cell, or have moved; they stay in the buffer
    # By namespace, the entries that stay because another transaction, such as an import, keeps the namespace locked.
    locked: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)  # the namespaces of the entries of ``elsewhere`` and ``locked``
    busy: bool = False  # another process was storing the buffer, so this call stored nothing
    damages: list[Damage] = field(default_factory=list)

    def note_kept(self, namespace: str) -> None:
        """Note that entries of a namespace stay in the buffer."""
        if namespace not in self.kept:
            self.kept.append(namespace)


class _Clock:
    """The last checks of the buffer's folder by this process, and the namespaces that were locked then.

    A caller that is limited to some namespaces stores only the messages of these namespaces. So one caller's check does
    not count for another caller. ``looked_at`` has the time (by ``time.monotonic``) of each caller's last check, by its
    namespaces. The key ``None`` stands for callers without a limit.
    """

    def __init__(self) -> None:
        self.looked_at = dict[frozenset[str] | None, float]()
        self.locked = frozenset[str]()


def keep(
    deployment: Deployment,
    namespace: str,
    session_key: str,
    messages: Sequence[Message],
    observers: Sequence[str] | None,
    *,
    observe: bool | None,
    end: bool,
) -> Receipt:
    """Write one call of ``ingest`` to the session buffer. The buffer keeps the call until Postgres is back.

    Secrets are replaced before. The namespace's setting ``scrub`` is in Postgres, which is away, so it is not asked.

    Raises:
        BufferError: the call could not be written to the buffer.
        InvalidInput: a name has a secret.
    """
    from nexus_tasks.services.ingestion import check_names, scrubbed

    check_names(session_key, messages, observers or ())
    said = [asdict(scrubbed(one)) for one in messages]
    payload = {"messages": said, "observers": observers, "observe": observe, "end": end}
    deployment.buffer.append(namespace, session_key, buffer_entries.plain(payload), buffer_entries.INGEST)
    deployment.local(_Clock).looked_at.clear()  # after the append: a look of another thread may have missed it
    return Receipt(
        namespaces=(namespace,),
        session_keys=(session_key,),
        messages=len(messages),
        stored=0,
        duplicates=0,
        enqueued=0,
        buffered=len(messages),
    )


def store_pending(deployment: Deployment, writing: str | None = None, session_key: str | None = None) -> None:
    """Store this machine's session buffer before a call of the client reads or writes memory.

    A process checks the buffer's folder at most every 5 s for each caller. After the process has buffered a call, its
    next calls check the folder at once. So does a call that writes to a namespace that was locked at the last check.
    So does a call that writes to a session of which another process has buffered messages.

    Args:
        writing: the namespace to which the call is about to write messages.
        session_key: the session to which it is about to write them.

    Raises:
        StorageUnavailable: Postgres still does not answer, or takes no writes although ``writing`` is given.
        Transient: earlier messages of ``writing`` wait in the buffer, and another transaction keeps ``writing`` locked.
            Or those of the session wait, and another process is storing the buffer. The call's messages must not be
            stored before them.
    """
    # A caller that is limited to some namespaces stores only their messages. So a tenant neither waits for the messages
    # of another tenant, nor fails when those cannot be stored. Workers store those.
    allowed, clock = tenancy.limit(), deployment.local(_Clock)
    caller = None if allowed is None else frozenset(allowed)
    last = clock.looked_at.get(caller, float("-inf"))
    is_recent = time.monotonic() - last < LOOK_EVERY and writing not in clock.locked
    if is_recent and not _waits(deployment.buffer, writing, session_key):
        return
    if len(clock.looked_at) >= _MOST_CALLERS:
        clock.looked_at.clear()
    clock.looked_at[caller] = time.monotonic()  # before the look: what a thread buffers during it is not forgotten
    try:
        locked = frozenset[str]()
        if deployment.buffer.pending():
            with tenancy.unlimited():  # a namespace may be new
                report = _store_patiently(deployment, allowed, writing, session_key)
            locked = frozenset(report.locked)
            if report.busy:
                clock.looked_at.pop(caller, None)
                if _waits(deployment.buffer, writing, session_key):
                    raise Transient(
                        f"Another process is storing buffered messages of the session {session_key}.",
                        remedy="Try again in a moment.",
                    )
        clock.locked = locked | (frozenset() if allowed is None else clock.locked.difference(allowed))
    except BufferError as error:  # the client's call goes on although the buffer cannot be read
        log.warning("The session buffer is not stored yet: %s", error)
    except StorageUnavailable as error:
        if writing is not None or not is_read_only(error):
            clock.looked_at.pop(caller, None)
            raise
        log.warning("The session buffer is not stored yet: %s", error)  # a call that only reads goes on, on a standby
    except BaseException:
        clock.looked_at.pop(caller, None)
        raise
    if writing in clock.locked:
        raise Transient(f"Another command, such as an import, keeps the namespace {writing} locked.")


def _waits(buffer: SessionBuffer, namespace: str | None, session_key: str | None) -> bool:
    """Whether messages of a session wait in the buffer. Later messages must not be stored before them."""
    if namespace is None or session_key is None:
        return False
    try:
        return buffer.has(namespace, as_stored(session_key))
    except BufferError as error:  # the client's call goes on although the buffer cannot be read
        log.warning("The session buffer cannot be read: %s", error)
        return False


def _store_patiently(
    deployment: Deployment, allowed: Collection[str] | None, writing: str | None, session_key: str | None
) -> StoreReport:
    """Store the buffer. While another call stores it, wait up to a second if messages of the session are in it."""
    end = time.monotonic() + _PATIENCE
    while True:
        report = store_buffer(deployment, allowed=allowed, briefly=True)
        if not report.busy or time.monotonic() >= end or not _waits(deployment.buffer, writing, session_key):
            return report
        time.sleep(_POLL_EVERY)


def store_buffer(
    deployment: Deployment,
    *,
    wait: bool = False,
    buffer: SessionBuffer | None = None,
    allowed: Collection[str] | None = None,
    briefly: bool = False,
    begins: Callable[[], object] = lambda: None,
) -> StoreReport:
    """Store all sessions of this machine's buffer, and delete the stored entries from the buffer.

    Each transaction stores entries of one session.

    Args:
        deployment: the deployment whose database stores the entries.
        buffer: the buffer with the entries of another deployment. Default: the entries of ``deployment``.
        wait: while another process stores the buffer, wait until that process has finished. Without ``wait`` this call
            then returns at once, and its report has ``busy`` set.
        allowed: store and report only the entries of these namespaces. Default: those of all.
        briefly: wait at most a second for a namespace that another transaction keeps locked. Its entries stay.
        begins: called when no other process stores the buffer any more, before its entries are read.

    Returns:
        The numbers of stored messages and deleted entries, and the entries that could not be stored.

    Raises:
        StorageUnavailable: Postgres does not answer. Entries that were not stored stay in the buffer.
        BufferError: the folder cannot be read or written.
    """
    buffer, report = buffer or deployment.buffer, StoreReport()
    with buffer.storing(wait=wait) as mine:
        if not mine:
            report.busy = True
            return report
        begins()
        if buffer.pending():
            with deployment.database.reading() as tx:
                tx.execute(text("SELECT 1"))  # while Postgres is away, no call reads the whole buffer in vain
        known, sessions = set[str](), set[tuple[str, str, str]]()
        while True:
            recovery = buffer.recover(allowed, known=known, most=_READ_AT_ONCE)
            report.damages += [one for one in recovery.damages if one not in report.damages]
            by_session = [list(found) for _, found in groupby(recovery.segments, _WHOSE)]
            for segments in sorted(by_session, key=_since):
                sessions.add(_WHOSE(segments[0]))
                report.sessions = len(sessions)
                for first in range(0, len(segments), _AT_ONCE):
                    some = segments[first : first + _AT_ONCE]
                    namespace = some[0].agent
                    entries = sum(len(segment.entries) for segment in some)
                    if namespace in report.kept and namespace not in report.locked:
                        report.elsewhere += entries  # its other sessions would be refused, too
                    elif namespace in report.locked or not _store(deployment, buffer, some, report, briefly=briefly):
                        report.locked[namespace] = report.locked.get(namespace, 0) + entries
                        report.note_kept(namespace)
            if sum(segment.size for segment in recovery.segments) < _READ_AT_ONCE:
                return report
            known.update(segment.path for segment in recovery.segments)


def _since(segments: Sequence[Segment]) -> float:
    return min((entry.time for segment in segments for entry in segment.entries[:1]), default=0.0)


def _store(
    deployment: Deployment, buffer: SessionBuffer, segments: Sequence[Segment], report: StoreReport, *, briefly: bool
) -> bool:
    """Store entries of one session. Returns ``False`` when another transaction has locked their namespace or session.

    The entries then stay in the buffer.
    """
    try:
        waiting = _store_each(deployment, buffer, segments, report, briefly=briefly)
    except Transient as error:
        if isinstance(error, StorageUnavailable) or not isinstance(error.__cause__, DBAPIError):
            raise  # the entries of other namespaces would fail as well
        log.warning("The entries of %s stay in the buffer: %s", segments[0].agent, error)
        return False
    if waiting is not None:
        done = [one for one in segments if waiting.isdisjoint(entry.entry_seq for entry in one.entries)]
        report.entries += buffer.acknowledge(done)
    return True


def _store_each(
    deployment: Deployment,
    buffer: SessionBuffer,
    segments: Sequence[Segment],
    report: StoreReport,
    patience: float | None = None,
    *,
    briefly: bool = False,
) -> set[int] | None:
    """Store entries of one session. Returns the ``entry_seq`` of those that wait; ``None``: none can be stored here."""
    entries = [(segment, entry) for segment in segments for entry in segment.entries]
    waiting = set[int]()
    try:
        together = [entry for _, entry in entries]
        waiting = _store_entries(deployment, segments[0], together, report, patience, buffer=buffer, briefly=briefly)
    except (NamespaceMoving, NamespaceMoved, ConfigurationError) as error:
        # `services/cells/buffers.py` stores them in the other cell. A ConfigurationError says here that the directory
        # of cells refuses this process.
        log.warning("%d entries of %s stay in the buffer: %s", len(entries), segments[0].agent, error)
        report.elsewhere += len(entries)
        report.note_kept(segments[0].agent)
        return None
    except InvalidInput:  # at least one entry can never be stored, so each entry is now stored alone
        for segment, entry in entries:
            try:
                waiting |= _store_entries(
                    deployment, segment, [entry], report, patience, buffer=buffer, briefly=briefly
                )
            except InvalidInput as error:
                report.damages.append(buffer.refuse(segment, entry, error.message))
    unknown = sum(not _is_known(entry) for _, entry in entries)
    if unknown:
        log.warning(
            "The buffer has %d entries of a type that this release does not know. They wait for a newer release.",
            unknown,
        )
    report.unknown += unknown
    report.waiting += len(waiting) - unknown
    return waiting


def store_before_erasure(
    deployment: Deployment,
    namespace: str,
    session_key: str | None,
    *,
    whole: bool,
    buffer: SessionBuffer | None = None,
) -> None:
    """Store the entries of what is about to be erased, so that the erasure reaches them too.

    Otherwise the entries would be stored after the erasure, and would bring back what it has erased. A crash before the
    erasure loses nothing. This call waits while another process stores the buffer.

    Args:
        deployment: the deployment.
        namespace: the namespace.
        session_key: only this session. ``None``: each session of the namespace.
        whole: the erasure deletes the whole session, or namespace. Its entries of a type that this release does not
            know, and its entries in quarantine, are then deleted here.
        buffer: the buffer with the entries of another deployment. Default: the entries of ``deployment``.

    Raises:
        StorageUnavailable: Postgres does not answer.
        BufferError: the folder cannot be read or written.
    """
    buffer = buffer or deployment.buffer
    if buffer.pending():
        with buffer.storing(wait=True):
            recovery = buffer.recover()
            _check_all_read(recovery.damages)
            found = [one for one in recovery.segments if one.agent == namespace]
            found = [one for one in found if session_key is None or as_stored(one.session) == as_stored(session_key)]
            for _, together in groupby(found, attrgetter("session", "start_id")):
                segments = list(together)
                for first in range(0, len(segments), _AT_ONCE):
                    _store_completely(deployment, buffer, segments[first : first + _AT_ONCE], whole=whole)
    if whole:
        for damage in buffer.quarantine_of(namespace):
            if session_key is None or as_stored(damage.session) == as_stored(session_key):
                buffer.discard(damage)


def warn_of_others(buffer: SessionBuffer, namespace: str, session_key: str | None) -> None:
    """Warn of buffered messages of the erased namespace or session that belong to another deployment.

    The other deployment may be the same database under another address: ``127.0.0.1`` in place of ``localhost``. Its
    messages would then be stored after the erasure. It may also be another database, so this process stores none.

    Args:
        session_key: the erased session; ``None`` when the whole namespace is erased.
    """
    try:
        found = buffer.status()
    except BufferError as error:  # for example, a folder of another user
        log.warning("The entries of other deployments in the session buffer cannot be counted: %s", error)
        return
    entries = Counter[str]()
    for one in found:
        if one["agent"] == namespace and (session_key is None or as_stored(one["session"]) == as_stored(session_key)):
            entries[one["deployment"]] += one["entries"]
    for name in sorted(name for name in +entries if name not in ("", buffer.deployment)):
        log.warning(
            "The erasure does not reach %d buffered entries of %s. They wait on this machine for the deployment %s. If"
            " that is another address of this database, run `nexus buffer flush --of %s` and erase again.",
            *(entries[name], namespace, name, name),
        )


def _check_all_read(damages: Sequence[Damage]) -> None:
    """Check that no folder stays that this user may not read, because it may have messages of what is erased."""
    for damage in damages:
        if damage.kind == "unreadable":
            raise BufferError(
                f"{damage.kept_as} may have messages of what is to be erased, and {damage.reason}. Nothing was erased.",
                remedy="Give yourself access to it, and erase again.",
            )


def _store_completely(
    deployment: Deployment, buffer: SessionBuffer, segments: Sequence[Segment], *, whole: bool
) -> None:
    """Store entries, and delete their segments. No event waits for its message in the transcript."""
    # Below zero, because the clock may have been ahead when an event was written.
    if _store_each(deployment, buffer, segments, StoreReport(), patience=float("-inf")) is None:
        return
    for segment in segments if not whole else ():
        for entry in segment.entries:
            if not _is_known(entry):  # it must not keep a segment whose other entries would be stored again
                buffer.append(segment.agent, segment.session, entry.payload, entry.context_type)
    buffer.acknowledge(segments)


def release(buffer: SessionBuffer, name: str | None = None, *, allowed: Collection[str] | None = None) -> int:
    """Append refused entries again to their sessions, and delete them from quarantine. Returns how many.

    An entry is appended before its file is deleted, so that a crash loses nothing. An entry that is refused again
    returns to quarantine.

    Args:
        name: the name of a file in quarantine. Default: every refused entry of the buffer's deployment.
        allowed: only entries of these namespaces. Default: those of all.

    Raises:
        NotFound: the quarantine has no file of this name.
        InvalidInput: the file has a damaged line, or an entry of another deployment.
        BufferError: the folder cannot be read or written.
    """
    found = [
        pair
        for pair in buffer.quarantine()
        if name in (None, os.path.basename(pair[0].kept_as)) and (allowed is None or pair[0].agent in allowed)
    ]
    if name is not None and not found:
        raise NotFound(f"The quarantine has no file {name!r}.", remedy="See `nexus buffer quarantine`.")
    if name is not None and found[0][1] is None:
        raise InvalidInput(
            f"{name} is not a whole entry of this deployment, so it cannot be released.",
            remedy="`nexus buffer quarantine --json` says why it was set aside, and where its bytes are.",
        )
    count = 0
    for damage, entry in found:
        if entry is not None:
            payload = buffer_entries.released(entry, os.path.basename(damage.kept_as))
            buffer.append(damage.agent, damage.session, payload, entry.context_type)
            buffer.discard(damage)
            count += 1
    return count


def _store_entries(
    deployment: Deployment,
    segment: Segment,
    entries: Sequence[Entry],
    report: StoreReport,
    patience: float | None,
    *,
    buffer: SessionBuffer,
    briefly: bool,
) -> set[int]:
    """Store entries of one session in one transaction. See :func:`hook_events.settle` for ``patience``.

    Some entries are events of a coding agent's hook. Returns the ``entry_seq`` of the entries that must wait: events
    whose messages are not in the agent's transcript yet, and entries of an unknown type.
    """
    from nexus_tasks.services.ingestion import SessionWriter, without_secrets

    unknown = {entry.entry_seq for entry in entries if not _is_known(entry)}
    entries = [entry for entry in entries if entry.entry_seq not in unknown]
    if not entries:
        return unknown
    namespace, session_key = check_namespace(segment.agent), check_name("session_key", segment.session)
    of_hook = [entry for entry in entries if entry.context_type in events.AGENTS]
    calls = buffer_entries.calls(segment.start_id, (entry for entry in entries if entry not in of_hook))
    turn = hook_events.read(_transcripts(buffer), namespace, segment.start_id, of_hook)
    # A message after the end opens the session again, so the end counts only when no message follows.
    ends = turn.ended if of_hook else bool(calls) and calls[-1].end
    clean = [without_secrets(call.messages) for call in calls]
    of_turn = without_secrets(turn.messages)
    with deployment.database.transaction() as tx:
        if briefly:
            tx.execute(text(_BRIEFLY))
        writer = SessionWriter(deployment, tx, namespaces.ensure(tx, namespace), session_key)
        before = writer.session()
        # A coding agent loses its old messages at a compaction, so its sessions are observed, unless somebody has said
        # something else about this session.
        observe = (
            True
            if of_hook and deployment.settings.hook_observe and (before is None or before.observe is None)
            else None
        )
        # Erased messages still stand in the transcript, and it is read again when the agent has rewritten it. An
        # erasure that is not committed shows no ids yet. It holds the session's lock, so this waits for its end.
        writer.lock()
        gone = erased_ids.erased(tx, writer.namespace.id, (message.id for message in turn.messages))
        told = buffer_entries.told([one for one in turn.messages if one.id not in gone], observe=observe)
        of_turn = [clean for clean, one in zip(of_turn, turn.messages, strict=True) if one.id not in gone]
        for call, without in zip([*calls, told], [*clean, of_turn], strict=True):
            if call.messages:
                _store_call(writer, call, without)
        session = writer.session()
        lacking, waiting = hook_events.settle(tx, session.id if session else None, turn, patience)
        if lacking:
            _store_call(writer, buffer_entries.told(lacking, observe=observe))
        if session := writer.session():
            if ends:
                writer.end(session)
            if ends or turn.over_at > 0:  # the session, or a turn of the agent in it, is over
                writer.want_extraction(session, known_only=not of_hook)
    hook_events.note(_transcripts(buffer), namespace, turn)
    for stored in writer.stored:
        report.stored += len(stored.memory_ids)
        report.duplicates += stored.duplicates
    report.enqueued += writer.enqueue()
    return waiting | unknown


def _is_known(entry: Entry) -> bool:
    kind = entry.context_type
    return isinstance(kind, str) and (kind in buffer_entries.KNOWN or kind in events.AGENTS)


def _store_call(writer: SessionWriter, call: Call, clean: Sequence[Message] | None = None) -> None:
    now = datetime.fromtimestamp(call.time, UTC)
    writer.store(call.messages, call.observers, observe=call.observe, now=now, changed="keep", clean=clean)


def _transcripts(buffer: SessionBuffer) -> str:
    """The folder that notes up to where each transcript was read. It is beside the buffer.

    It is not in the home of the cell that stores the buffer: after a move of the namespace, another cell stores the
    buffer. A cell without these notes would read each transcript from its beginning.
    """
    return os.path.join(os.path.dirname(buffer.folder), "transcripts")
