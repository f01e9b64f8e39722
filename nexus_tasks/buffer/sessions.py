"""The sessions of a buffer's folder, and those whose files this process keeps open."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

from nexus_tasks.buffer import files
from nexus_tasks.buffer.entry import Entry, as_json
from nexus_tasks.buffer.places import QUARANTINE, SESSIONS, session_folder_name
from nexus_tasks.buffer.quarantine import Damage, set_aside
from nexus_tasks.buffer.segment import Segment
from nexus_tasks.buffer.session import SessionFiles
from nexus_tasks.buffer.syncing import Syncer

_MOST_OPEN = 64  # the one that was opened first is closed for the next: a process may talk to any number of sessions


class Sessions:
    """Finds and makes session folders; threads share what is open, a forked child opens its own."""

    def __init__(self, folder: str, fsync: str, interval: float) -> None:
        self._folder, self._quarantine = os.path.join(folder, SESSIONS), os.path.join(folder, QUARANTINE)
        self._fsync = fsync
        self._syncer = Syncer(interval)
        self._reset()

    def _reset(self) -> None:
        self._open: dict[str, SessionFiles] = {}
        self._turn = threading.Lock()
        self._pid = os.getpid()

    def find(self, agent: str, session: str) -> SessionFiles | None:
        """The session's files, or ``None`` when it has none."""
        return self._opened(session_folder_name(agent, session))

    def made(self, agent: str, session: str) -> SessionFiles:
        """The session's files, made as needed."""
        name = session_folder_name(agent, session)
        while (found := self._opened(name)) is None:
            files.make_folder(self._folder)
            SessionFiles.make(os.path.join(self._folder, name), agent, session)
        return found

    def every(self) -> Iterator[SessionFiles]:
        """All sessions here, in no particular order."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            if not name.startswith(".") and (found := self._opened(name)):
                yield found

    def refuse(self, segment: Segment, entry: Entry, reason: str) -> Damage:
        """Keep an entry that can never be stored in quarantine."""
        name = os.path.basename(segment.path)
        seq = entry.entry_seq
        made = Damage("refused", segment.agent, segment.session, name, seq, 0, 0, reason, "")
        return set_aside(self._quarantine, os.path.basename(os.path.dirname(segment.path)), made, as_json(entry))

    def let_go(self, agent: str, session: str) -> None:
        """Open the session's files anew the next time."""
        with self._turn:
            self._open.pop(session_folder_name(agent, session), None)

    def close(self) -> None:
        """Sync what was written, and let go of everything."""
        if self._pid == os.getpid():
            self._syncer.now()
        self._reset()

    def _opened(self, name: str) -> SessionFiles | None:
        if self._pid != os.getpid():
            self._reset()  # a lock on a descriptor that is shared with the parent excludes nobody
        with self._turn:
            if name not in self._open:
                folder = os.path.join(self._folder, name)
                try:
                    found = SessionFiles(folder, self._quarantine, self._written, always=self._fsync == "always")
                except FileNotFoundError:
                    return None
                except (ValueError, KeyError, TypeError):
                    self._set_aside(name)
                    return None
                while len(self._open) >= _MOST_OPEN:
                    self._open.pop(next(iter(self._open)))
                self._open[name] = found
            return self._open[name]

    def _set_aside(self, name: str) -> None:
        """A power cut has left a folder that does not say whose it is: keep it for a person to look at."""
        files.make_folder(self._quarantine)
        with suppress(FileNotFoundError):
            os.rename(
                os.path.join(self._folder, name), os.path.join(self._quarantine, f"{name}-{os.urandom(4).hex()}.folder")
            )

    def _written(self, path: str) -> None:
        if self._fsync == "interval":
            self._syncer.written(path)
