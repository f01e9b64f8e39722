"""Appending to, sealing and reading the segments (files) of one session, under a lock for threads and processes."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from time import time

from nexus_tasks import files
from nexus_tasks.buffer import entry as entries
from nexus_tasks.buffer.places import is_open, open_name, sealed_name, sealed_range
from nexus_tasks.buffer.quarantine import Damage, set_aside
from nexus_tasks.buffer.segment import Flaw, Segment, read

# A segment is sealed when it has SEAL_ENTRIES entries. An append also seals a segment whose first entry is SEAL_SECONDS
# old. Both limits were chosen by hand.
SEAL_ENTRIES, SEAL_SECONDS = 10, 10.0
_LOCK, ABOUT, FLUSHED = "lock", "session.json", "flushed"


class SessionCleared(Exception):
    """Another thread or process deleted the session's folder, or moved it to quarantine."""


class SessionFiles:
    """The files in one session's folder. Entries are appended to the one open segment. Sealed segments never change.

    Args:
        folder: the session's folder, which :meth:`make` made.
        quarantine: the folder for damaged parts of segments.
        written: called with the path of every file that was written to or renamed.
        always: sync every append to disk.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError, KeyError, TypeError: the folder's ``session.json`` is damaged.
    """

    def __init__(self, folder: str, quarantine: str, written: Callable[[str], None], *, always: bool) -> None:
        self._fd = self._lock_fd = -1
        about = json.loads(_content(os.path.join(folder, ABOUT)))
        self.agent, self.session = str(about["agent"]), str(about["session"])
        self.start_id, self.started_at = str(about["start_id"]), float(about["started_at"])
        self.deployment = str(about.get("deployment", ""))  # empty: of every deployment
        self.folder, self._quarantine = folder, quarantine
        self._written, self._always = written, always
        self._thread_lock = threading.Lock()  # needed, because flock does not exclude threads that share a descriptor
        self._lock_path = os.path.join(folder, _LOCK)
        self._lock_fd = files.open_or_make(self._lock_path, os.O_RDWR)
        # The state of the open segment when this process last held the lock: inode, path, first and next entry_seq,
        # size in bytes, and the time of the first entry in seconds since 1970.
        self._inode, self._path = 0, ""
        self._first, self._next, self._end, self._began = 1, 1, 0, 0.0

    @staticmethod
    def make(folder: str, agent: str, session: str, deployment: str) -> None:
        """Make a session's folder. When another process makes the folder at the same time, that folder is kept."""
        aside = f"{os.path.dirname(folder)}/.{os.path.basename(folder)}.{os.urandom(6).hex()}"
        os.mkdir(aside, 0o700)
        about: dict[str, object] = {"agent": agent, "session": session, "deployment": deployment}
        about |= {"start_id": os.urandom(8).hex(), "started_at": time()}
        try:
            files.write_atomic(os.path.join(aside, ABOUT), entries.as_json(about), durable=True)
        except BaseException:  # else every event on a full disk would leave a folder
            os.rmdir(aside)
            raise
        try:
            os.rename(aside, folder)
        except OSError:
            os.unlink(os.path.join(aside, ABOUT))
            os.rmdir(aside)
            if not os.path.isdir(folder):
                raise
        files.sync(os.path.dirname(folder))

    def __del__(self) -> None:
        # Python calls this method when no thread refers to the object any more. In a forked child the method closes
        # only the child's copies of the descriptors.
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)

    # --- appending ----------------------------------------------------------------------------------------------------
    def append(self, context_type: bytes, payload: bytes) -> tuple[int, int]:
        """Write one entry. Returns the entry's ``entry_seq`` and the length of its line in bytes.

        Args:
            context_type: the type of the entry, as JSON.
            payload: the payload, as JSON.

        Raises:
            SessionCleared: the session's folder was deleted.
            OSError: the entry could not be written. The segment is unchanged.
        """
        with self._locked():
            self._refresh()
            now = time()
            if self._count and now - self._began >= SEAL_SECONDS:
                self._seal()
            seq, end = self._next, self._end
            line = entries.line(seq, now, context_type, payload)
            try:
                files.write_all(self._fd, line)
                if self._always:
                    os.fdatasync(self._fd) if hasattr(os, "fdatasync") else os.fsync(self._fd)
            except BaseException:  # also after a KeyboardInterrupt the half-written entry is cut off
                os.ftruncate(self._fd, end)
                raise
            self._began = self._began if self._count else now
            self._next, self._end = seq + 1, end + len(line)
            self._written(self._path)
            if self._count >= SEAL_ENTRIES:
                with suppress(OSError):  # the entry is written; the next append or flush opens or seals a segment again
                    self._seal()
        return seq, len(line)

    @property
    def _count(self) -> int:
        return self._next - self._first

    def _refresh(self) -> list[Damage]:
        """Read the lines and segments that other processes added after this process last held the lock."""
        try:
            found = os.stat(self._path) if self._fd >= 0 else None
        except FileNotFoundError:
            found = None
        if found is None or found.st_ino != self._inode:
            return self._open_last()
        if found.st_size != self._end:
            return self._catch_up()
        return []

    def _open_last(self) -> list[Damage]:
        names = sorted(os.listdir(self.folder))
        sealed = [name for name in names if name.endswith(".sealed")]
        following = 1 + max((sealed_range(name)[1] for name in sealed), default=0)
        opened = [name for name in names if is_open(name)]
        damages = list[Damage]()
        for name in opened[:-1]:  # an older segment was sealed, and a power cut undid its renaming
            self._open(name)
            damages += self._catch_up()
            self._rename()
        self._open(opened[-1] if opened else open_name(following))
        return damages + self._catch_up()

    def _open(self, name: str) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._path = os.path.join(self.folder, name)
        self._fd = files.open_or_make(self._path, os.O_RDWR | os.O_APPEND)
        self._inode = os.fstat(self._fd).st_ino
        self._first = self._next = int(name.partition(".")[0])
        self._end, self._began = 0, 0.0
        if self._always:
            files.sync(self.folder)

    def _catch_up(self) -> list[Damage]:
        """Read the lines that other processes appended.

        An unfinished last line comes from a process that died. The line is cut off and copied to quarantine.
        """
        offset = self._end
        data = os.pread(self._fd, os.fstat(self._fd).st_size - offset, offset)
        whole = data.rfind(b"\n") + 1
        damages = []
        if whole < len(data):
            flaw = read(data)[1][-1]._replace(line=self._count + data.count(b"\n") + 1, offset=offset + whole)
            damages.append(self._set_aside(self._path, flaw))
            os.ftruncate(self._fd, offset + whole)
        if whole:
            found = read(data[:whole])[0]
            if not self._count:
                self._began = found[0].time if found else time()
            # After a power cut there may be zeros in place of line breaks, so there may be more entries than line
            # breaks. The next entry_seq is therefore also above every entry_seq that was read.
            self._next += data.count(b"\n", 0, whole)
            self._next = max([self._next, *(parsed.entry_seq + 1 for parsed in found)])
            self._end += whole
        return damages

    def _seal(self) -> None:
        """Seal the open segment and open the next one."""
        following = self._next
        self._rename()
        self._open(open_name(following))

    def _rename(self) -> None:
        sealed = os.path.join(self.folder, sealed_name(self._first, self._next - 1))
        os.rename(self._path, sealed)
        self._written(sealed)

    # --- storing ------------------------------------------------------------------------------------------------------
    def flush(self, known: Container[str] = (), room: float = float("inf")) -> tuple[list[Segment], list[Damage]]:
        """Seal the open segment, and sync the sealed segments to disk.

        Args:
            known: paths of segments that are left out.
            room: when the segments that were read have this many bytes together, no further one is read.

        Returns:
            The sealed segments, oldest first, and the damaged parts.

        Raises:
            SessionCleared: the session's folder was deleted.
            OSError: a file could not be read or synced.
        """
        with self._locked():
            damages = self._refresh()
            if self._count:
                self._seal()
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".sealed"))
            if names:
                # This also syncs the name of the next open segment. The name contains the next entry_seq, so no
                # entry_seq is used twice after a power cut.
                files.sync(self.folder)
        segments = []
        for path in (os.path.join(self.folder, name) for name in names):
            if path in known:
                continue
            if room <= 0:
                break
            try:
                # Sync before the caller stores the segment. A power cut must not change an entry that Postgres has.
                files.sync(path)
                data = _content(path)
            except FileNotFoundError:
                continue  # another process has stored and deleted the segment
            room -= len(data)
            found, flaws = read(data)
            damages += [self._set_aside(path, flaw) for flaw in flaws]
            segments.append(Segment(self.agent, self.session, self.start_id, path, len(data), tuple(found)))
        return segments, damages

    def _set_aside(self, path: str, flaw: Flaw) -> Damage:
        kind = "torn" if flaw.torn else "corrupt"
        name, length = os.path.basename(path), len(flaw.raw)
        made = Damage(kind, self.agent, self.session, name, flaw.line, flaw.offset, length, flaw.reason, "")
        return set_aside(self._quarantine, os.path.basename(self.folder), made, flaw.raw)

    def clear(self, *, idle_for: float = 0.0) -> bool:
        """Delete the folder with everything in it. Returns whether this call deleted the folder.

        A thread or process that waits for the folder's lock gets :class:`SessionCleared`.

        Args:
            idle_for: delete the folder only if it holds no entry and was not written to for this many seconds. With 0
                the folder is deleted in any case.

        Raises:
            SessionCleared: another thread or process has deleted the folder.
            OSError: the folder cannot be written.
        """
        with self._locked():
            if idle_for and not self._idle(idle_for):
                return False
            gone = f"{os.path.dirname(self.folder)}/.{os.path.basename(self.folder)}.{os.urandom(6).hex()}"
            os.rename(self.folder, gone)
            for name in os.listdir(gone):
                os.unlink(os.path.join(gone, name))
            os.rmdir(gone)
        return True

    def _idle(self, seconds: float) -> bool:
        names = os.listdir(self.folder)
        segments = [os.stat(os.path.join(self.folder, name)) for name in names if name.endswith((".open", ".sealed"))]
        return time() - self.started_at > seconds and all(
            not found.st_size and time() - found.st_mtime > seconds for found in segments
        )

    def in_place(self) -> bool:
        """Whether the folder has the lock that is held, and so is no other folder of the same session."""
        try:
            return os.path.samestat(os.fstat(self._lock_fd), os.stat(self._lock_path))
        except FileNotFoundError:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_lock:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            try:
                if not self.in_place():
                    raise SessionCleared
                yield
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
