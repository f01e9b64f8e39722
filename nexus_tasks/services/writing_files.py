"""Write a file that a user named, without harm to what is there: devices, links and files of others stay.

The functions of ``nexus_tasks/files.py`` write files of this package. They replace whatever has the name.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from nexus_tasks.errors import InvalidInput, NexusError


@contextmanager
def replacing(path: Path, *, overwrite: bool) -> Iterator[TextIO]:
    """Write a draft beside ``path`` and rename it when the block ends. After an error ``path`` is unchanged.

    Args:
        path: a new file, or an existing regular file.
        overwrite: replace an existing file.

    Raises:
        InvalidInput: ``path`` is a link, a device or a folder, it exists and may not be replaced, or it cannot be
            written.
    """
    draft = ""
    try:
        _check(path, overwrite=overwrite)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with open(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check(path, overwrite=overwrite)  # another process may have made it meanwhile
        os.replace(draft, path)
        draft = ""
    except NexusError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: the name has a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{str(path)!r} cannot be written: {reason}.") from error
    finally:
        if draft:
            os.unlink(draft)


def _check(path: Path, *, overwrite: bool) -> None:
    mode = mode_of(path)
    if mode is None:
        return
    if not stat.S_ISREG(mode):
        raise InvalidInput(
            f"{path} is {kind_of(mode)}, not a regular file.",
            remedy="Name a new file, or - for the standard output.",
        )
    if not overwrite:
        raise InvalidInput(f"{path} exists.", remedy="Give --force (in Python overwrite=True), or another file name.")


def mode_of(path: Path) -> int | None:
    """The type and permissions of what has this name, a link itself included; ``None`` when nothing has it."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def kind_of(mode: int) -> str:
    """The type of a file in words, such as ``a symbolic link``."""
    kinds = (
        (stat.S_ISREG, "a regular file"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((word for test, word in kinds if test(mode)), "a device")
