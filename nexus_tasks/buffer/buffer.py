"""The session buffer: files that keep messages on this machine until they are stored in Postgres.

The life of an entry:

1. ``append`` writes it to the open segment (a file) of its session.
2. ``flush``, or a full segment, seals the segment: nothing is appended to it any more.
3. The caller stores the entries of the sealed segments in Postgres.
4. ``acknowledge`` deletes the stored segments.

A segment is called acknowledged when its entries are stored in Postgres and its file is deleted. After a crash
``recover`` returns every segment that is not acknowledged, also the segments of processes that died.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, cast

from nexus_tasks import file_locks, files
from nexus_tasks.buffer import entry, quarantine, stats
from nexus_tasks.buffer.places import (
    QUARANTINE,
    belongs_to,
    default_deployment_name,
    default_folder,
    session_folder_name,
    waiting_name,
)
from nexus_tasks.buffer.quarantine import Damage
from nexus_tasks.buffer.segment import Segment
from nexus_tasks.buffer.session import FLUSHED, SessionCleared
from nexus_tasks.buffer.sessions import Sessions, of_another_user
from nexus_tasks.errors import BufferError

Fsync = Literal["always", "interval", "off"]

MAX_BYTES = 1 << 30
INTERVAL = 1.0  # seconds
# The buffer's size is measured again after 1/64 of the free room is written. The share was chosen by hand.
_SHARE = 64
_IDLE_SECONDS = 7 * 86_400.0  # the folder of an empty session is deleted after this time without an append
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)


class Recovery(NamedTuple):
    """The result of :meth:`SessionBuffer.recover`: segments to store, and damaged parts of files."""

    segments: list[Segment]
    damages: list[Damage]


class SessionBuffer:
    """Append-only files, one folder per (agent, session). Any number of threads and processes may share one folder.

    An entry survives a crash of any process once ``append`` has returned. ``fsync`` decides whether the entry also
    survives a power cut:

    - With ``"always"`` the entry survives.
    - With ``"interval"`` the entry survives, with two exceptions. An entry may be lost when it was written in the last
      second before the power cut, or in the last second before its process was killed.
    - With ``"off"`` the entry survives if the operating system wrote it to disk before the power cut. Operating systems
      commonly do so within 30 s.

    Args:
        folder: the buffer's folder. Default: ``buffer`` under the home of the deployment.
        fsync: when entries are synced to disk. Default: ``NEXUS_BUFFER_FSYNC``, or ``interval`` when that is not set.
        max_bytes: the largest size of the buffer, bytes. ``append`` raises when the entry does not fit. Default:
            ``NEXUS_BUFFER_MAX_BYTES``, or 1 GiB when that is not set.
        deployment: the name of the deployment that the entries belong to: the host, port and name of its database, or
            ``embedded``. The entries of other deployments stay untouched. Default: the deployment of ``NEXUS_CELL``, or
            of ``NEXUS_DATABASE_URL``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        fsync: Fsync | None = None,
        max_bytes: int | None = None,
        deployment: str | None = None,
    ) -> None:
        self.folder = os.fspath(folder) if folder is not None else default_folder()
        self.fsync = _policy(fsync or os.environ.get("NEXUS_BUFFER_FSYNC") or "interval")
        self.max_bytes = max_bytes or _most_bytes(os.environ.get("NEXUS_BUFFER_MAX_BYTES"))
        self.deployment = deployment or default_deployment_name()
        self._sessions = Sessions(self.folder, self.deployment, self.fsync, INTERVAL)
        self._room = 0  # bytes that may be written before the buffer's size is measured again

    def of(self, deployment: str) -> SessionBuffer:
        """The buffer of the same folder with the entries of another deployment."""
        return SessionBuffer(self.folder, fsync=self.fsync, max_bytes=self.max_bytes, deployment=deployment)

    # --- writing ------------------------------------------------------------------------------------------------------
    def start(self, agent: str, session: str) -> None:
        """Make the session's folder. A missing permission then raises an error before the first append.

        A second start of a session changes nothing.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._os_errors_explained():
            self._sessions.get_or_make(agent, session)

    def append(self, agent: str, session: str, payload: Any, context_type: str = "message") -> int:
        """Write one entry to the session's open segment. ``fsync`` decides when the entry is synced to disk.

        Args:
            agent: the first part of the session's name. Commands and the hook pass a namespace here.
            session: the session's key.
            payload: a JSON value. With ``context_type="message"`` the payload is a text, or an object with the fields
                of :class:`nexus_tasks.Message`.
            context_type: the type of the payload. It decides how the payload is read when the entry is stored.

        Returns:
            The entry's number ``entry_seq``. The first entry of the session has the number 1.

        Raises:
            BufferError: the entry is not kept, because the disk or the buffer is full, the folder cannot be written, or
                the payload is not JSON.
        """
        try:
            kind, body = entry.as_json(context_type), entry.as_json(payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise BufferError(
                f"The payload is not JSON: {error}.", remedy="Append a value that json.dumps accepts."
            ) from None
        with self._os_errors_explained():
            self._check_room(len(body))
            while True:
                session_files = self._sessions.get_or_make(agent, session)
                try:
                    seq, length = session_files.append(kind, body)
                except SessionCleared:
                    self._sessions.forget(session_files)
                else:
                    self._room -= length
                    return seq

    def _check_room(self, length: int) -> None:
        if self._room < length:
            used = stats.total_bytes(self.folder)
            if used + length > self.max_bytes:
                raise BufferError(
                    f"The buffer {self.folder} holds {used:,} bytes and may hold {self.max_bytes:,}.",
                    remedy="Run `nexus buffer flush` once Postgres answers, or raise NEXUS_BUFFER_MAX_BYTES.",
                )
            # Other processes write to the same folder. Measure again after a small part of the free room is used.
            self._room = max((self.max_bytes - used) // _SHARE, length)

    # --- storing ------------------------------------------------------------------------------------------------------
    def flush(self, agent: str, session: str) -> list[Segment]:
        """Seal the session's open segment. Returns every segment that is not acknowledged, oldest first.

        The returned segments are synced to disk.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        with self._os_errors_explained():
            segments = list[Segment]()
            for session_files in self._sessions.find(agent, session):
                with suppress(SessionCleared):
                    segments += session_files.flush()[0]
            return segments

    def flush_all(self) -> list[Segment]:
        """Flush every session. Returns every segment that is not acknowledged.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        return self.recover().segments

    def recover(
        self, agents: Collection[str] | None = None, *, known: Container[str] = (), most: float = float("inf")
    ) -> Recovery:
        """Flush every session, also the sessions of processes that died, and report the parts that cannot be read.

        A torn (unfinished) last line is cut off. A corrupt line is skipped. Torn and corrupt lines are copied to the
        folder ``quarantine`` with their positions. Every call returns a segment again until it is acknowledged.
        Folders and files of another user, which this user may not read, stay, and are reported too.

        Args:
            agents: read only the sessions of these agents. Default: those of all.
            known: paths of segments that an earlier call has returned. They are left out.
            most: when the segments that were read have this many bytes together, no further one is read. Default: all
                are read.

        Raises:
            BufferError: the folder cannot be written or read.
        """
        found, room = Recovery([], []), most
        with self._os_errors_explained():
            for session_files in self._sessions.own(found.damages):
                if agents is not None and session_files.agent not in agents:
                    continue
                if room <= 0:
                    break
                with suppress(SessionCleared):
                    try:
                        segments, damages = session_files.flush(known, room)
                    except PermissionError as error:
                        path = os.fspath(error.filename or session_files.folder)
                        found.damages.append(of_another_user(path, error, session_files))
                        continue
                    room -= sum(one.size for one in segments)
                    found.segments.extend(segments)
                    found.damages.extend(damages)
                    if not segments and session_files.clear(idle_for=_IDLE_SECONDS):
                        self._sessions.forget(session_files)
        return found

    def acknowledge(self, segments: Iterable[Segment]) -> int:
        """Delete the given segments. The caller has stored their entries.

        A segment that changed after it was read stays. Returns how many entries the deleted segments had.

        Raises:
            BufferError: a file cannot be deleted.
        """
        entries = 0
        with self._os_errors_explained():
            for segment in segments:
                with suppress(FileNotFoundError):  # acknowledged before
                    if os.path.getsize(segment.path) == segment.size:
                        os.unlink(segment.path)
                        entries += len(segment.entries)
                        files.touch(os.path.join(os.path.dirname(segment.path), FLUSHED))
        return entries

    def clear(self, agent: str, session: str) -> bool:
        """Delete a session and all its entries, also entries that are not stored. Returns whether the session existed.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._os_errors_explained():
            found = self._sessions.find(agent, session)
            for session_files in found:
                with suppress(SessionCleared):
                    session_files.clear()
                self._sessions.forget(session_files)
            return bool(found)

    def refuse(self, segment: Segment, refused: entry.Entry, reason: str) -> Damage:
        """Copy the entry ``refused``, which can never be stored, to quarantine, and return the copy's description.

        Afterwards the entry's segment can be acknowledged.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._os_errors_explained():
            return self._sessions.quarantine_entry(segment, refused, reason)

    @contextmanager
    def storing(self, *, wait: bool = False) -> Iterator[bool]:
        """Take the lock that lets one process at a time store the entries of this folder.

        The lock only saves work: storing an entry twice changes nothing.

        Args:
            wait: wait for the lock. By default the call does not wait.

        Yields:
            ``True`` when this process holds the lock, ``False`` when another process holds it.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._os_errors_explained():
            path = self._lock_file("storing.lock")
            held = file_locks.lock(path) if wait else file_locks.try_lock(path)
        try:
            yield held is not None
        finally:
            if held is not None:
                held.release_everywhere()  # an application may have forked a child meanwhile

    def try_waiting(self) -> file_locks.FileLock | None:
        """Take the lock of the one process that waits for :meth:`storing`, without waiting for the lock.

        The process releases the lock when it may store, before it reads the entries. So another process that does not
        get the lock can leave its entries to the first one.

        Returns:
            The lock. ``None``: another process waits to store the entries of this deployment.

        Raises:
            BufferError: the folder cannot be written.
        """
        with self._os_errors_explained():
            return file_locks.try_lock(self._lock_file(waiting_name(self.deployment)))

    def _lock_file(self, name: str) -> str:
        path = os.path.join(self.folder, name)
        files.make_folder(self.folder)
        os.close(files.open_or_make(path, os.O_RDWR))  # the lock would make it for root alone
        return path

    # --- reading ------------------------------------------------------------------------------------------------------
    def status(self) -> list[dict[str, Any]]:
        """The figures of each session, also of other deployments. The call changes nothing.

        The keys are ``agent``, ``session``, ``deployment`` (empty: every deployment stores the session's entries),
        ``started_at``, ``entries``, ``last_flush``, ``bytes`` and
        ``oldest_unacknowledged``. The values of ``started_at``, ``last_flush`` and ``oldest_unacknowledged`` are times
        in seconds since 1970, or ``None``.
        """
        with self._os_errors_explained():
            return [stats.session_stats(found) for found in self._sessions.all()]

    def list(self) -> list[tuple[str, str]]:
        """The (agent, session) pairs of this deployment that have a folder in the buffer.

        Folders of another user, which this user may not read, are left out.
        """
        with self._os_errors_explained():
            return [(found.agent, found.session) for found in self._sessions.own([])]

    def has(self, agent: str, session: str) -> bool:
        """Whether the session has an entry that is not acknowledged."""
        with self._os_errors_explained():
            found = self._sessions.find(agent, session)
            return any(stats.session_stats(session_files)["entries"] for session_files in found)

    def pending(self) -> bool:
        """Whether a session of this deployment has an entry that is not acknowledged.

        The call reads only names and sizes of files.
        """
        with self._os_errors_explained():
            return stats.has_pending_entries(self.folder, self.deployment)

    def backlog(self) -> tuple[int, float]:
        """The bytes of this deployment's entries that are not acknowledged, and when their oldest file was written.

        The time is in seconds since the epoch, or 0 without an entry.
        """
        with self._os_errors_explained():
            return stats.backlog(self.folder, self.deployment)

    def quarantined(self) -> int:
        """The number of files in quarantine."""
        with self._os_errors_explained():
            return stats.count_quarantined(self.folder)

    def quarantine(self) -> Sequence[tuple[Damage, entry.Entry | None]]:
        """What is in quarantine: each damage, and its entry if this deployment may release the entry.

        Only refused entries have an entry. Torn and corrupt lines cannot be read any more.
        """
        with self._os_errors_explained():
            return [
                (one, quarantine.entry_of(one.kept_as) if self._is_own(one) else None)
                for one in quarantine.every(os.path.join(self.folder, QUARANTINE))
            ]

    def quarantine_of(self, agent: str) -> Sequence[Damage]:
        """What is in quarantine of an agent in this deployment."""
        with self._os_errors_explained():
            found = quarantine.every(os.path.join(self.folder, QUARANTINE))
        return [one for one in found if one.agent == agent and (self._is_own(one) or self._made_here(one))]

    def _made_here(self, damage: Damage) -> bool:
        folder = session_folder_name(damage.agent, damage.session, self.deployment)
        return os.path.basename(damage.kept_as).startswith(f"{folder}-")

    def _is_own(self, damage: Damage) -> bool:
        return damage.kind == "refused" and belongs_to(quarantine.session_folder_of(damage), self.deployment)

    def discard(self, damage: Damage) -> None:
        """Delete a file of the quarantine.

        Raises:
            BufferError: the file cannot be deleted.
        """
        with self._os_errors_explained(), suppress(FileNotFoundError):
            os.unlink(damage.kept_as)

    def close(self) -> None:
        """Sync the written entries and close the files. A later call opens the files again."""
        self._sessions.close()

    @contextmanager
    def _os_errors_explained(self) -> Iterator[None]:
        """Turn an ``OSError`` of the ``with`` block into a ``BufferError`` that says what to do."""
        try:
            yield
        except OSError as error:
            raise _explain(error, self.folder) from error


def _policy(name: str) -> Fsync:
    if name not in ("always", "interval", "off"):
        raise BufferError(f"There is no fsync policy {name!r}.", remedy="Use always, interval or off.")
    return cast("Fsync", name)


def _most_bytes(given: str | None) -> int:
    try:
        return int(given or MAX_BYTES)
    except ValueError:
        raise BufferError(
            f"NEXUS_BUFFER_MAX_BYTES={given} is no number of bytes.", remedy=f"Give a number, such as {MAX_BYTES}."
        ) from None


def _explain(error: OSError, folder: str) -> BufferError:
    path = error.filename or folder
    if error.errno in _DISK_FULL:
        return BufferError(
            f"The disk that holds {folder} is full: nothing was kept.",
            remedy="Free some space, or set NEXUS_HOME to a folder on another disk.",
        )
    if error.errno in _NO_ACCESS:
        return BufferError(
            f"{path} cannot be written ({error.strerror}): nothing was kept.",
            remedy="Give yourself access to the folder, or set NEXUS_HOME to another one.",
        )
    return BufferError(f"{path}: {error.strerror or error}: nothing was kept.")
