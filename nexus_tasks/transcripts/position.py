"""The position up to which a transcript is stored. The next reading of the transcript begins at this position."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any, NamedTuple

from nexus_tasks import files
from nexus_tasks.transcripts.claude_code import Message, Reader

_MARK_BYTES = 512


class Position(NamedTuple):
    """The end of the stored part of a transcript."""

    offset: int = 0  # bytes
    mark: str = ""  # a hash of the 512 bytes before ``offset``: it differs when the file was rewritten
    open_calls: dict[str, str] = {}  # noqa: RUF012 - never changed; the id and tool of calls without a result


class NewPart(NamedTuple):
    """The part of a transcript after a position."""

    messages: list[Message]
    position: Position  # the end of this part
    broken: int  # lines that are not JSON


def read_on(path: str, position: Position) -> NewPart:
    """The messages after ``position``; all messages when the file was rewritten since.

    A last line without a line break is still being written. The next reading reads it.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        begin = max(position.offset - _MARK_BYTES, 0)
        file.seek(begin)
        before = file.read(position.offset - begin)
        if _mark(before) != position.mark:
            position, before = Position(), b""
            file.seek(0)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    reader = Reader(position.open_calls)
    messages = list(reader.messages(data.split(b"\n")))
    mark = _mark((before + data)[-_MARK_BYTES:])
    return NewPart(messages, Position(position.offset + len(data), mark, reader.open_calls), reader.broken)


def _mark(data: bytes) -> str:
    return sha256(data).hexdigest() if data else ""


def load(folder: str, path: str) -> Position:
    """The saved position of a transcript. Without a readable saved position, the transcript's beginning."""
    try:
        with open(_file(folder, path), "rb") as file:
            found: dict[str, Any] = json.load(file)
        return Position(int(found["offset"]), str(found["mark"]), dict(found["open_calls"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()


def save(folder: str, path: str, position: Position) -> None:
    """Save a position. Call it once everything before the position is stored.

    Raises:
        OSError: the file cannot be written. The next reading then takes longer, and stores nothing twice.
    """
    files.make_folder(folder)
    document = position._asdict() | {"path": path}
    files.write_atomic(_file(folder, path), json.dumps(document).encode())


def _file(folder: str, path: str) -> str:
    return os.path.join(folder, sha256(os.fsencode(path)).hexdigest()[:32] + ".json")
