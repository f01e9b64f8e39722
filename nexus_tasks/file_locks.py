"""Locks on files (``flock``). Only the standard library is imported, because a coding agent's hook uses this module.

``flock`` locks the open file, not the process. A child process that inherits the descriptor has the lock too. The
kernel releases the lock when the last process with the descriptor ends, also when this process is killed. Therefore no
lock outlives its processes.

Each embedded server (a Postgres or Redis that this package starts) inherits the descriptor of its lock. While the file
is locked, the server or a child of the server runs. Therefore a check of the lock can replace a check of the server's
pid.
"""

from __future__ import annotations

import fcntl
import os
import time

_PAUSE = 0.01  # seconds between two tries: a wait in the kernel could not end at a deadline


class FileLock:
    """An exclusive lock that :func:`try_lock` or :func:`lock` has taken on a file.

    The end of a ``with`` block, or :meth:`release`, releases the lock.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def release(self) -> None:
        """Close this process's descriptor. A child process that inherited the descriptor keeps the lock."""
        os.close(self.fd)

    def release_everywhere(self) -> None:
        """Release the lock also when a child process inherited the descriptor."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)
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
    """Take the lock on ``path`` without waiting. Returns ``None`` when the file is already locked.

    The file also counts as locked when the caller's own process has locked it. A missing file is made (mode 0600). The
    file's folder must exist.

    Raises:
        OSError: the file cannot be opened.
    """
    return _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(path: str | os.PathLike[str], seconds: float | None = None) -> FileLock:
    """Wait until ``path`` is not locked, and take the lock. A missing file is made, as in :func:`try_lock`.

    Args:
        path: the file.
        seconds: the longest wait. With ``None`` there is no limit.

    Raises:
        TimeoutError: the lock was not free within ``seconds``.
        OSError: the file cannot be opened.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while (taken := _take(path, fcntl.LOCK_EX | (fcntl.LOCK_NB if deadline else 0))) is None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{path} has been locked for {seconds:.0f} s")
        time.sleep(_PAUSE)
    return taken


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether the file ``path`` is locked. A missing file is not locked, and is not made."""
    if not os.path.exists(path):
        return False
    if (taken := try_lock(path)) is None:
        return True
    taken.release()
    return False


def has_open(pid: int, path: str | os.PathLike[str]) -> bool:
    """Whether the process ``pid`` has the file ``path`` open, as every process has that keeps the file locked.

    A pid that is read from a file may be another process's: the process that wrote it has ended, or lives in another
    container. When the system does not tell, the answer is ``True``.
    """
    if not os.path.isdir("/proc/self/fd"):
        return True
    try:
        return any(_is_same(f"/proc/{pid}/fd/{fd}", path) for fd in os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:  # the process belongs to another user, such as that of the embedded Postgres of root
        return True
    except OSError:  # the process has ended
        return False


def _is_same(one: str, other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:  # the process has closed it meanwhile
        return False


def _take(path: str | os.PathLike[str], how: int) -> FileLock | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:  # also after a KeyboardInterrupt, because an open descriptor would keep the lock
        os.close(fd)
        raise
    return FileLock(fd)
