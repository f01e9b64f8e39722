"""Syncing files in a background thread, so that with ``fsync="interval"`` no append waits for the disk."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress

from nexus_tasks import files


class Syncer:
    """Syncs each written file at most ``interval`` seconds after the write, and when the process ends."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._pid = 0
        self._reset()

    def _reset(self) -> None:
        self._marking, self._syncing = threading.Lock(), threading.Lock()
        self._dirty: set[str] = set()
        self._wake = threading.Event()

    def written(self, path: str) -> None:
        """Note that ``path`` has new bytes."""
        # The thread starts at the first write of a process. A forked child starts its own thread, because it does not
        # inherit its parent's.
        if self._pid != os.getpid():
            self._begin()
        with self._marking:
            clean = not self._dirty
            self._dirty.add(path)
        if clean:
            self._wake.set()

    def now(self) -> None:
        """Sync every file that was written after the last sync."""
        if self._pid != os.getpid():
            return  # a forked child that has written nothing; a thread of its parent may hold the lock for ever
        with self._syncing:
            with self._marking:
                paths, self._dirty = self._dirty, set()
            for path in (*paths, *{os.path.dirname(path) for path in paths}):
                # A file is missing when its segment was sealed (renamed) or deleted after the write. An error of the
                # disk is ignored too, because a failing disk also makes the next append fail.
                with suppress(OSError):
                    files.sync(path)

    def _begin(self) -> None:
        self._reset()
        self._pid = os.getpid()
        threading.Thread(target=self._run, args=(self._pid,), daemon=True, name="nexus-buffer-sync").start()
        atexit.unregister(self.now)
        atexit.register(self.now)

    def _run(self, pid: int) -> None:
        while self._pid == pid:
            self._wake.wait()
            self._wake.clear()
            time.sleep(self._interval)  # one fsync then serves all entries of the interval
            self.now()
