"""Finding the sessions in a buffer's folder, and keeping the files of up to 64 sessions open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from nexus_tasks import files
from nexus_tasks.buffer.entry import Entry, as_json
from nexus_tasks.buffer.places import QUARANTINE, SESSIONS, belongs_to, session_folder_name
from nexus_tasks.buffer.quarantine import Damage, make_quarantine, set_aside
from nexus_tasks.buffer.segment import Segment
from nexus_tasks.buffer.session import ABOUT, SessionFiles
from nexus_tasks.buffer.syncing import Syncer
from nexus_tasks.errors import BufferError

# The largest number of sessions whose files are open at a time. When one more session is opened, the session that was
# opened first is closed.
_MOST_OPEN = 64


class Sessions:
    """Finds and makes session folders. Threads share the open files. A forked child opens the files again.

    A new folder belongs to the deployment of this name. The folders of other deployments are only read for figures.
    """

    def __init__(self, folder: str, deployment: str, fsync: str, interval: float) -> None:
        self._deployment = deployment
        self._folder, self._quarantine = os.path.join(folder, SESSIONS), os.path.join(folder, QUARANTINE)
        self._fsync = fsync
        self._syncer = Syncer(interval)
        self._reset()

    def _reset(self) -> None:
        self._open: dict[str, SessionFiles] = {}
        self._thread_lock = threading.Lock()
        self._pid = os.getpid()

    def find(self, agent: str, session: str) -> list[SessionFiles]:
        """The files of a session that this deployment stores.

        There are none when the session has no folder, and two when the release 0.1.0 has made one without the name of
        a deployment.
        """
        self._check_owner()
        names = session_folder_name(agent, session), session_folder_name(agent, session, self._deployment)
        return [found for name in names if (found := self._opened(name))]

    def get_or_make(self, agent: str, session: str) -> SessionFiles:
        """The session's files. A missing folder is made."""
        self._check_owner()
        name = session_folder_name(agent, session, self._deployment)
        while (found := self._opened(name)) is None:
            files.make_folder(self._folder)
            SessionFiles.make(os.path.join(self._folder, name), agent, session, self._deployment)
        return found

    def own(self, unreadable: list[Damage] | None = None) -> Iterator[SessionFiles]:
        """The files of every session that this deployment stores, in the order of the folders' names (hashes).

        Args:
            unreadable: gets the folders of other users, which this user may not read. Without it, one of them raises.
        """
        return self._all(lambda name: belongs_to(name, self._deployment), unreadable)

    def all(self) -> Iterator[SessionFiles]:
        """The files of every session, also of other deployments, in the order of the folders' names (hashes)."""
        return self._all(lambda _name: True)

    def _all(self, wanted: Callable[[str], bool], unreadable: list[Damage] | None = None) -> Iterator[SessionFiles]:
        self._check_owner()
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(".") or not wanted(name):
                continue
            try:
                found = self._opened(name)
            except PermissionError as error:
                if unreadable is None:
                    raise
                unreadable.append(of_another_user(os.path.join(self._folder, name), error))
                continue
            if found:
                yield found

    def quarantine_entry(self, segment: Segment, entry: Entry, reason: str) -> Damage:
        """Copy ``entry``, which can never be stored, to quarantine. ``reason`` says why."""
        name = os.path.basename(segment.path)
        seq = entry.entry_seq
        made = Damage("refused", segment.agent, segment.session, name, seq, 0, 0, reason, "")
        return set_aside(self._quarantine, os.path.basename(os.path.dirname(segment.path)), made, as_json(entry))

    def forget(self, session_files: SessionFiles) -> None:
        """Close the files of a session. The next use of the session opens them again."""
        with self._thread_lock:
            self._open.pop(os.path.basename(session_files.folder), None)

    def close(self) -> None:
        """Sync the written entries and close all files."""
        if self._pid == os.getpid():
            self._syncer.now()
        self._reset()

    def _check_owner(self) -> None:
        """Refuse a folder that another user has made before this one, because that user can put messages into it.

        Raises:
            BufferError: the folder belongs to another user, and neither is root.
        """
        me = os.geteuid()
        for folder in (os.path.dirname(self._folder), self._folder):
            with suppress(FileNotFoundError):
                if me and os.stat(folder).st_uid not in (0, me):
                    raise BufferError(
                        f"The buffer's folder {folder} belongs to another user: nothing was kept.",
                        remedy="Set NEXUS_HOME to a folder of your own.",
                    )

    def _opened(self, name: str) -> SessionFiles | None:
        if self._pid != os.getpid():
            # This is a forked child. A lock that the child takes on an inherited descriptor does not exclude the
            # parent, so the child opens its own descriptors.
            self._reset()
        with self._thread_lock:
            if name in self._open and not self._open[name].in_place():
                del self._open[name]  # another process has deleted the folder, and may have made it again
            if name not in self._open:
                folder = os.path.join(self._folder, name)
                try:
                    found = SessionFiles(folder, self._quarantine, self._written, always=self._fsync == "always")
                except FileNotFoundError:
                    # A folder is made with its `session.json` in it. One without it can never be used, and would keep
                    # its place for ever.
                    if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, ABOUT)):
                        self._set_aside(name)
                    return None
                except NotADirectoryError:
                    return None  # a file that another program has put there, such as `desktop.ini`; it stays
                except (ValueError, KeyError, TypeError):
                    self._set_aside(name)
                    return None
                while len(self._open) >= _MOST_OPEN:
                    self._open.pop(next(iter(self._open)))
                self._open[name] = found
            return self._open[name]

    def _set_aside(self, name: str) -> None:
        """Move the folder ``name`` to quarantine, because its ``session.json`` is missing or damaged."""
        make_quarantine(self._quarantine)
        with suppress(FileNotFoundError):
            os.rename(
                os.path.join(self._folder, name), os.path.join(self._quarantine, f"{name}-{os.urandom(4).hex()}.folder")
            )

    def _written(self, path: str) -> None:
        if self._fsync == "interval":
            self._syncer.written(path)


def of_another_user(path: str, error: PermissionError, files: SessionFiles | None = None) -> Damage:
    """The description of a folder or file that another user has made, for example root, and that this one may not read.

    Raises:
        PermissionError: this user has made it, so the error has another cause.
    """
    if os.lstat(path).st_uid == os.geteuid():
        raise error
    agent, session = (files.agent, files.session) if files else ("", "")
    return Damage("unreadable", agent, session, "", 0, 0, 0, "it belongs to another user", path)
