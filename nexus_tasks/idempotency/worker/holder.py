"""The holder of leases: a process that runs jobs, and the file whose lock shows that this process lives.

A lease is the time for which the claim of a running job (its record in Redis) stays valid without a renewal.

Every process that begins a job locks a file of its own below ``NEXUS_HOME``. The kernel drops the lock when the process
ends in any way, even by SIGKILL or as a zombie, and when the process replaces itself by ``exec``. A sweep (the loop in
``sweeper.py``) that can lock the file of another process knows that this process has ended. Process ids are not used,
because they repeat, above all in containers.

A sweep tries only files of processes under the same running kernel, because locks of another machine may be invisible.
The jobs of any other dead process are queued again when their leases have ended.
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

BOOT_ID = "/proc/sys/kernel/random/boot_id"  # on Linux: an id of the running kernel, equal in all its containers
KEEP_SECONDS = 7 * 86_400.0  # how long files stay that another machine made, or this machine before its last boot


class LeaseHolder:
    """This process, as a holder of leases.

    Args:
        folder: has one file per holder. When a process dies, the other processes that share the folder queue the dead
            process's jobs again.
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
        """The description of this process for its claims. ``node`` is the name of the Celery worker."""
        return Worker(node=node, host=platform.node(), pid=os.getpid())

    def dead(self) -> Iterator[str]:
        """The ids of this machine's holders that have ended. A holder's file is deleted before the next id comes."""
        for path in self._files():
            machine, _, holder = path.name.partition(".")
            if machine != this_machine():
                _forget_in_time(path)
            elif taken := _try_lock(path):
                with taken:
                    # The holder of a copied file may live, because its lock is on the original file.
                    if not _is_copy(taken.fd):
                        yield holder
                    _unlink(path)

    def leave_to_parent(self) -> None:
        """In a forked child: close the inherited file. Otherwise the parent would seem to live as long as the child."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:  # the folder is missing, because no process could make it; each has logged the reason
            return []

    def _own(self, holder: str) -> FileLock:
        files.make_folder(str(self.folder))
        path = self.folder / f"{this_machine()}.{holder}"
        while True:
            if taken := try_lock(path):
                if os.fstat(taken.fd).st_nlink:
                    taken.write(str(os.fstat(taken.fd).st_ino))  # see `_is_copy`
                    return taken
                taken.release()  # before this process locked the file, a sweep of another process deleted it


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
    except OSError:  # the file of another user's process cannot be opened
        return None


def _is_copy(fd: int) -> bool:
    """Whether a holder's file was copied, for example with all of ``NEXUS_HOME``: it then names another inode."""
    made = os.pread(fd, 32, 0)
    return bool(made) and made != str(os.fstat(fd).st_ino).encode()


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _forget_in_time(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > KEEP_SECONDS:
            path.unlink()
