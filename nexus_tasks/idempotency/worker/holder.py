"""The holder of leases: a process that runs jobs, and the file whose lock shows that this process lives.

Every process that begins a job locks a file of its own below ``NEXUS_HOME``. The kernel drops the lock when the process
ends: by SIGKILL, as a zombie, or when the process replaces itself by ``exec``. A sweep that can take the lock of
another process's file knows that this process has ended. No process id is trusted: ids repeat, above all in containers.

A sweep judges only files that a process of the same running kernel made. Elsewhere a lock may not be seen. A holder
whose file cannot be judged loses its claims when their leases end.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from nexus_tasks import files
from nexus_tasks.file_locks import FileLock, try_lock
from nexus_tasks.types import Worker

log = logging.getLogger(__name__)

BOOT_ID = "/proc/sys/kernel/random/boot_id"  # Linux: of the running kernel, so all its containers have the same
KEEP_SECONDS = 7 * 86_400.0  # for the files of another machine in a shared folder, and of this one before its last boot


class LeaseHolder:
    """This process, as a holder of leases.

    Args:
        folder: has one file per holder. Processes that share it give back each other's claims at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._making = threading.Lock()
        self._id = ""
        self._lock: FileLock | None = None

    @property
    def id(self) -> str:
        """The first part of the fencing tokens of this process's runs. The first read makes and locks the file."""
        with self._making:
            if not self._id:
                made = secrets.token_hex(8)
                try:
                    self._lock = self._own(made)
                except OSError as error:
                    log.warning("If this process is killed, its jobs wait for the end of their leases: %s", error)
                self._id = made
            return self._id

    def worker(self, node: str) -> Worker:
        """What claims tell about this process; ``node`` is the name of the Celery worker."""
        return Worker(node=node, host=platform.node(), pid=os.getpid())

    def dead(self) -> Iterator[str]:
        """The ids of this machine's holders that have ended. A holder is forgotten when the next id is asked for."""
        for path in self._files():
            machine, _, holder = path.name.partition(".")
            if machine != this_machine():
                _forget_in_time(path)
            elif taken := _try_lock(path):
                with taken:
                    yield holder
                    _unlink(path)

    def leave_to_parent(self) -> None:
        """In a forked child: close the inherited file, or the parent would seem to live as long as the child."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:  # no process could make it, and the processes have said so
            return []

    def _own(self, holder: str) -> FileLock:
        files.make_folder(str(self.folder))
        path = self.folder / f"{this_machine()}.{holder}"
        while True:
            if taken := try_lock(path):
                if os.fstat(taken.fd).st_nlink:
                    return taken
                taken.release()  # a sweep of another process took the file before it was locked, and deleted it


@cache
def this_machine() -> str:
    """A name of the running kernel, the same in all its containers. Without ``/proc``, a name of the machine."""
    try:
        return Path(BOOT_ID).read_text().strip()
    except OSError:
        return platform.node().replace(".", "-")


def _try_lock(path: Path) -> FileLock | None:
    try:
        return try_lock(path)
    except OSError:  # a file of another user: its process cannot be judged
        return None


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _forget_in_time(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > KEEP_SECONDS:
            path.unlink()
