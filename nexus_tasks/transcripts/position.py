"""How far a transcript is stored, so that the next reading goes on from there."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any, NamedTuple

from nexus_tasks.transcripts.claude_code import Message, Reader

_MARK_BYTES = 512


class Position(NamedTuple):
    """Bytes that are stored, what stood right before their end, and the tool calls that had no answer yet."""

    offset: int = 0
    mark: str = ""
    open_calls: dict[str, str] = {}  # noqa: RUF012 - never changed


class News(NamedTuple):
    """What a transcript holds beyond a position."""

    messages: list[Message]
    position: Position
    broken: int  # lines that are no JSON


def read_on(path: str, position: Position) -> News:
    """The messages that came after ``position``; all of them when the file was written anew since.

    A line that is still being written is left for the next time.

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
    return News(messages, Position(position.offset + len(data), mark, reader.open_calls), reader.broken)


def _mark(data: bytes) -> str:
    return sha256(data).hexdigest() if data else ""


def load(folder: str, path: str) -> Position:
    """The position noted for a transcript; the beginning when there is none, or it cannot be read."""
    try:
        with open(_file(folder, path), "rb") as file:
            found: dict[str, Any] = json.load(file)
        return Position(int(found["offset"]), str(found["mark"]), dict(found["open_calls"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position()


def save(folder: str, path: str, position: Position) -> None:
    """Note a position, once everything before it is stored.

    Raises:
        OSError: it cannot be written; the next reading then stores nothing twice, and only takes longer.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = _file(folder, path)
    with open(f"{name}.new", "w", encoding="utf-8", opener=_private) as file:
        json.dump(position._asdict() | {"path": path}, file)
    os.replace(f"{name}.new", name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file(folder: str, path: str) -> str:
    return os.path.join(folder, sha256(os.fsencode(path)).hexdigest()[:32] + ".json")
