"""Read a file, a pipe or the standard input, up to fixed limits, so that a stream without an end fills no memory.

What is read is copied into a temporary file, so that importers can read it line by line, and more than once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import decoded

STANDARD_INPUT = Path("-")
_PIECE = 1024 * 1024  # bytes


_IN_MEMORY = 8 * 1024 * 1024  # bytes; a longer file is copied to disk


@dataclass(frozen=True)
class Source:
    """A file to import. Each call of a method reads it from its beginning."""

    path: Path  # for errors
    file: IO[bytes]

    def raw_lines(self) -> Iterator[bytes]:
        """The lines, with their ends."""
        self.file.seek(0)
        for line in self.file:  # noqa: UP028 - `yield from` would close the file when the reader stops early
            yield line

    def lines(self) -> Iterator[tuple[int, str]]:
        """The number and the text of each line that is not blank. Only ``\\n`` ends a line: JSON may have U+2028.

        Raises:
            InvalidInput: a line is not UTF-8. The error names the line.
        """
        for number, line in enumerate(self.raw_lines(), start=1):
            text = decoded(self.path, line, first_line=number).removesuffix("\n")
            if text.strip():
                yield number, text

    def beginning(self, characters: int) -> str:
        """The first characters, without blanks at the beginning. What is not UTF-8 is left out."""
        self.file.seek(0)
        return self.file.read(_PIECE).decode("utf-8-sig", errors="ignore").lstrip()[:characters]

    def text(self) -> str:
        """The whole text, for a document that is not in lines.

        Raises:
            InvalidInput: it is not UTF-8. The error names the line.
        """
        self.file.seek(0)
        return decoded(self.path, self.file.read())


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """The bytes of ``path``; ``-`` is the standard input.

    Raises:
        InvalidInput: the file cannot be read, or it is longer than a limit. A device without an end ends here too.
    """
    try:
        copy = _standard_input() if path == STANDARD_INPUT else _file(path)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror or error}.",
            remedy="Name a file that exists and may be read, or - for the standard input.",
        ) from None
    with copy:
        yield Source(path, copy)


def _standard_input() -> IO[bytes]:
    return _copied(sys.stdin.buffer, "The standard input")


def _file(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        return _copied(file, str(path))


def _copied(file: BinaryIO, name: str) -> IO[bytes]:
    copy = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    try:
        _copy(file, copy, name)
    except BaseException:
        copy.close()
        raise
    return copy


def _copy(file: BinaryIO, copy: IO[bytes], name: str) -> None:
    size = lines = line = 0
    while piece := file.read(_PIECE):
        copy.write(piece)
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


def _too_long(name: str, has: str) -> InvalidInput:
    return InvalidInput(
        f"{name} has {has}. Nothing was stored.",
        remedy="Split it, and ingest the parts one after another: the parts of one session continue it.",
    )
