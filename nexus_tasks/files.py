"""Write files that stay whole after a crash.

The hook of a coding agent imports this module and must start fast. Therefore this module imports only light modules of
the standard library. The functions take paths as text, because importing ``pathlib`` would slow down the hook's start.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

LOG_BYTES = 10_000_000  # a larger log file is renamed; the limit was chosen by hand, not measured


def make_folder(path: str) -> None:
    """Make a folder and its missing parents, each with the mode 0700. A folder that exists keeps its mode.

    ``os.makedirs`` would give the mode to the last folder only. The parents would be open to other users.

    Raises:
        OSError: a folder cannot be made, for example because a file has its name.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent:
        make_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):  # else another process has just made it
            raise


def write_atomic(
    path: str,
    data: bytes,
    *,
    durable: bool = False,
    mode: int = 0o600,
    keep_mode: bool = False,
    owner_of_folder: bool = False,
) -> None:
    """Write a new file and rename it to ``path``. After a crash ``path`` has either the new or the old content.

    Args:
        path: the file; its folder exists.
        data: the whole content.
        durable: also sync the content to disk before the renaming, so that a power cut cannot empty the file.
        mode: the permissions of a new file. The process's umask is subtracted.
        keep_mode: keep the permissions of a file that exists, and for root its owner too.
        owner_of_folder: a file that root makes gets the owner of its folder, who could not read it otherwise.

    Raises:
        OSError: the file could not be written. ``path`` is unchanged.
    """
    new = f"{path}.{os.urandom(6).hex()}.new"  # unique, because several threads may write the file at once
    before = os.stat(path) if keep_mode and os.path.exists(path) else None
    # A file that exists may be closed to others. Then its new text is closed to them from the beginning.
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode if before is None else 0o600)
    try:
        try:
            write_all(fd, data)
            if before is not None:
                if not os.geteuid():  # as root, with `sudo`: else the file's owner could not read it any more
                    with suppress(OSError):  # some file systems have no owners
                        os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode))
            if owner_of_folder:
                _give_to_owner_of_folder(fd, path)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, path)
    except BaseException:  # also after a KeyboardInterrupt, no half-written file may stay
        os.unlink(new)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``. A single ``os.write`` may write only a part, for example when a signal arrives."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def sync(path: str) -> None:
    """Sync a file's content, or the names in a folder, to disk, so that they survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_or_make(path: str, flags: int) -> int:
    """Open a file, and make it (mode 0600) when it is missing. Returns the descriptor.

    A file that root makes gets the owner of its folder. Otherwise that user could not open it after a command with
    ``sudo``.

    Raises:
        OSError: the file cannot be opened or made.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_CLOEXEC)
    _give_to_owner_of_folder(fd, path)
    return fd


def _give_to_owner_of_folder(fd: int, path: str) -> None:
    if not os.geteuid():
        with suppress(OSError):  # some file systems have no owners
            owner = os.stat(os.path.dirname(path))
            os.fchown(fd, owner.st_uid, owner.st_gid)


def touch(path: str) -> None:
    """Set a file's modification time to now; make the file (mode 0600) when it does not exist."""
    os.close(open_or_make(path, os.O_WRONLY))
    os.utime(path)


def open_log(path: str) -> int:
    """Open a log file (mode 0600) to append to it. A file of more than 10 MB is first renamed to ``PATH.1``.

    Returns:
        The descriptor of the open file.
    """
    if os.path.exists(path) and os.path.getsize(path) > LOG_BYTES:
        os.replace(path, f"{path}.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
