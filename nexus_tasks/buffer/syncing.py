"""Syncing files in a background thread. With ``fsync="interval"`` no append waits for the disk."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress

from nexus_tasks import files


class Syncer:
    """Syncs files at most ``interval`` seconds after a write, and when the process ends."""

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
        if self._pid != os.getpid():  # the first write of a process; a forked child inherits no thread
            self._begin()
        with self._marking:
            clean = not self._dirty
            self._dirty.add(path)
        if clean:
            self._wake.set()

    def now(self) -> None:
        """Sync every file that was written since the last sync."""
        with self._syncing:
            with self._marking:
                paths, self._dirty = self._dirty, set()
            for path in (*paths, *{os.path.dirname(path) for path in paths}):
                # The file may be sealed or deleted since it was written. If the disk fails, the next append fails.
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
            time.sleep(self._interval)
            self.now()
