"""Files that are there whole or not at all, and errors that say what to do."""

from __future__ import annotations

import errno
import fcntl
import os

from nexus_tasks.errors import BufferError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def make_folder(path: str) -> None:
    """Make a folder and those above it, closed to other users."""
    if not os.path.isdir(path):
        os.makedirs(path, mode=0o700, exist_ok=True)


def write_whole(path: str, data: bytes) -> None:
    """Write a file so that after any crash it is there whole, as it was before, or not at all."""
    aside = f"{path}.{os.getpid()}.new"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(aside, path)
    except OSError:
        if os.path.exists(aside):
            os.unlink(aside)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: a disk that fills up, or a signal, may let ``write`` take less."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def sync(path: str) -> None:
    """Make what a file holds, or the names in a folder, survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_lock(path: str) -> int:
    """A descriptor to lock."""
    make_folder(os.path.dirname(path))
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def lock(fd: int, *, wait: bool) -> bool:
    """Lock a descriptor until it is closed; ``False`` when somebody else holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def touch(path: str) -> None:
    """Note the present time as a file's own."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.utime(path)


def explain(error: OSError, folder: str) -> BufferError:
    """The error of the system, with its remedy."""
    where = error.filename or folder
    if error.errno in _FULL:
        return BufferError(
            f"The disk that holds {folder} is full: nothing was kept.",
            remedy="Free some space, or set NEXUS_HOME to a folder on another disk.",
        )
    if error.errno in _CLOSED:
        return BufferError(
            f"{where} cannot be written ({error.strerror}): nothing was kept.",
            remedy="Give yourself access to the folder, or set NEXUS_HOME to another one.",
        )
    return BufferError(f"{where}: {error.strerror or error}: nothing was kept.")
