"""Locks that end with the processes that hold them.

``flock`` belongs to the open file, not to a process: whoever inherits the descriptor holds the lock too, and the kernel
drops it with the last of them, however they died. So a starter's lock never goes stale, and a server that is launched
with a descriptor of its lock proves by it that it, or a child of it, still lives. No pid has to be believed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from nexus_tasks.errors import EmbeddedError


class FileLock:
    """An exclusive lock on a file, taken with :func:`try_lock` or :func:`lock`. Leaving its block releases it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def release(self) -> None:
        """Close this process's descriptor; children that inherited it keep the lock."""
        os.close(self.fd)

    def write(self, text: str) -> None:
        """Replace the content of the locked file."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(path: Path) -> FileLock | None:
    """The lock on ``path`` (created, mode 0600, when absent), or ``None`` when somebody holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:  # an interrupt too: an open file keeps its lock
        os.close(fd)
        raise
    return FileLock(fd)


def lock(path: Path, seconds: float) -> FileLock:
    """The lock on ``path``, waited for.

    Raises:
        EmbeddedError: somebody held it for all of ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while (held := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"Another process has been starting or stopping the embedded servers for {seconds:.0f} s.",
                remedy=f"See who holds {path} (`fuser {path}`), end it, and try again.",
            )
        time.sleep(0.01)
    return held


def locked(path: Path) -> bool:
    """Whether somebody holds the lock on ``path``; creates nothing."""
    if not path.exists():
        return False
    if (free := try_lock(path)) is None:
        return True
    free.release()
    return False
