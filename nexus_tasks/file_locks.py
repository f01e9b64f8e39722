"""Locks on files (``flock``). Standard library only: a coding agent's hook uses this module.

``flock`` locks the open file, not the process. A child that inherits the descriptor holds the lock too. The kernel
drops the lock when the last process with the descriptor ends, also after a kill. Therefore no lock outlives its
processes. An embedded server inherits the descriptor of its lock: while the lock is held, the server or a child of the
server lives. This check needs no pid.
"""

from __future__ import annotations

import fcntl
import os
import time

_PAUSE = 0.01  # seconds between two tries


class FileLock:
    """An exclusive lock on a file, taken with :func:`try_lock` or :func:`lock`. Leaving its block releases it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def release(self) -> None:
        """Close this process's descriptor. Children that inherited the descriptor keep the lock."""
        os.close(self.fd)

    def write(self, text: str) -> None:
        """Replace the content of the locked file."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(path: str | os.PathLike[str]) -> FileLock | None:
    """Take the lock on ``path`` without waiting; ``None`` while another descriptor of any process holds the lock.

    The file is made (mode 0600) when it does not exist; its folder must exist.

    Raises:
        OSError: the file cannot be opened.
    """
    return _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(path: str | os.PathLike[str], seconds: float | None = None) -> FileLock:
    """Wait for the lock on ``path`` and take it like :func:`try_lock`.

    Args:
        path: the file.
        seconds: the longest wait; default: no limit.

    Raises:
        TimeoutError: the lock was held for all of ``seconds``.
        OSError: the file cannot be opened.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while (taken := _take(path, fcntl.LOCK_EX | (fcntl.LOCK_NB if deadline else 0))) is None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{path} has been locked for {seconds:.0f} s")
        time.sleep(_PAUSE)
    return taken


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether the lock on ``path`` is held. Makes no file."""
    if not os.path.exists(path):
        return False
    if (taken := try_lock(path)) is None:
        return True
    taken.release()
    return False


def _take(path: str | os.PathLike[str], how: int) -> FileLock | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:  # also a KeyboardInterrupt: a descriptor left open would keep the lock
        os.close(fd)
        raise
    return FileLock(fd)
