"""The position up to which a transcript has been read and stored. The next reading begins at this position."""

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
    mark: str = ""  # a hash of the 512 bytes before ``offset``; after a rewrite of the file the hash differs
    open_calls: dict[str, str] = {}  # noqa: RUF012 - never changed; id of a call without a result → tool's name


class NewPart(NamedTuple):
    """The part of a transcript after a position."""

    messages: list[Message]
    position: Position  # the end of this part
    broken: int  # number of lines that are not a JSON object


def read_on(path: str, position: Position) -> NewPart:
    """Read the messages after ``position``. When the file was rewritten after the last reading, read all messages.

    A last line without a line break is left for the next reading, because the agent is still writing it.

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
    """The saved position of a transcript, or its beginning when no position is saved or the saved one is unreadable."""
    try:
        with open(_file(folder, path), "rb") as file:
            found: dict[str, Any] = json.load(file)
        return Position(int(found["offset"]), str(found["mark"]), dict(found["open_calls"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()


def save(folder: str, path: str, position: Position) -> None:
    """Save a position. Call this function only after all messages before the position are stored.

    Raises:
        OSError: the file cannot be written. The next reading then reads some messages again, but none is stored twice.
    """
    files.make_folder(folder)
    document = position._asdict() | {"path": path}
    files.write_atomic(_file(folder, path), json.dumps(document).encode())


def _file(folder: str, path: str) -> str:
    return os.path.join(folder, sha256(os.fsencode(path)).hexdigest()[:32] + ".json")
