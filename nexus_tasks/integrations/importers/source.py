"""Read a file, a pipe or the standard input, up to fixed limits, so that a stream without an end fills no memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput

STANDARD_INPUT = Path("-")
_PIECE = 1024 * 1024  # bytes


def read_source(path: Path) -> bytes:
    """All bytes of ``path``; ``-`` is the standard input.

    Raises:
        InvalidInput: the file cannot be read, or it is longer than a limit. A device without an end ends here too.
    """
    try:
        if path == STANDARD_INPUT:
            return _read(sys.stdin.buffer, "The standard input")
        with path.open("rb") as file:
            return _read(file, str(path))
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror or error}.",
            remedy="Name a file that exists and may be read, or - for the standard input.",
        ) from None


def _read(file: BinaryIO, name: str) -> bytes:
    pieces: list[bytes] = []
    size = lines = line = 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        ends = piece.count(b"\n")
        lines += ends
        line = len(piece) - piece.rindex(b"\n") - 1 if ends else line + len(piece)
        if line > limits.FILE_LINE_BYTES:
            raise _too_long(name, f"a line of more than {limits.FILE_LINE_BYTES // 2**20} MiB")
        if lines > limits.FILE_LINES:
            raise _too_long(name, f"more than {limits.FILE_LINES:,} lines")
        if size > limits.FILE_BYTES:
            raise _too_long(name, f"more than {limits.FILE_BYTES // 2**20} MiB")
    return b"".join(pieces)


def _too_long(name: str, has: str) -> InvalidInput:
    return InvalidInput(
        f"{name} has {has}. Nothing was stored.",
        remedy="Split it, and ingest the parts one after another: the parts of one session continue it.",
    )
