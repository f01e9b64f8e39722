"""The position up to which a transcript has been read and stored. The next reading begins at this position."""

from __future__ import annotations

import errno
import json
import os
import stat
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

from nexus_tasks import files
from nexus_tasks.transcripts import claude_code, codex
from nexus_tasks.transcripts.events import CLAUDE_CODE, CODEX
from nexus_tasks.transcripts.reader import Message, Reader

_MARK_BYTES = 512
LONGEST_READING = 268_435_456  # bytes; `nexus ingest` reads no longer file


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


# Agent → what reads its transcripts. The transcripts of Cursor have no documented format, so they are not read.
READERS: dict[str, type[Reader]] = {CLAUDE_CODE: claude_code.Reader, CODEX: codex.Reader}


def read_on(agent: str, path: str, position: Position) -> NewPart:
    """Read the messages after ``position``. When the file was rewritten after the last reading, read all messages.

    ``agent`` is one of ``READERS``.

    A last line without a line break is left for the next reading, because the agent is still writing it. One reading
    reads at most ``LONGEST_READING`` bytes, and the next reading goes on there.

    Raises:
        OSError: the file cannot be read, or it is no regular file: a pipe may never end.
    """
    with _open_regular(path) as file:
        begin = max(position.offset - _MARK_BYTES, 0)
        file.seek(begin)
        before = file.read(position.offset - begin)
        if _mark(before) != position.mark:
            position, before = Position(), b""
            file.seek(0)
        data = file.read(LONGEST_READING)
        if data is None:  # a file of the kernel, such as /proc/kmsg, has nothing to read now
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
    # A line that is longer than one reading is left out, in pieces without meaning.
    data = data if len(data) == LONGEST_READING and b"\n" not in data else data[: data.rfind(b"\n") + 1]
    reader = READERS[agent](position.open_calls)
    messages = list(reader.messages(data.split(b"\n")))
    mark = _mark((before + data)[-_MARK_BYTES:])
    return NewPart(messages, Position(position.offset + len(data), mark, reader.open_calls), reader.broken)


def _open_regular(path: str) -> BinaryIO:
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(descriptor, "rb")


def _mark(data: bytes) -> str:
    return sha256(data).hexdigest() if data else ""


def load(folder: str, path: str, namespace: str) -> Position:
    """The saved position of a transcript, or its beginning when no position is saved or the saved one is unreadable.

    Two hooks may store one transcript in two namespaces, so each namespace has a position of its own. Older releases
    had one position for all namespaces.
    """
    own = _load(_file(folder, path, namespace))
    return own if own != Position() else _load(_file(folder, path))


def _load(name: str) -> Position:
    try:
        with open(name, "rb") as file:
            found: dict[str, Any] = json.load(file)
        position = Position(int(found["offset"]), str(found["mark"]), dict(found["open_calls"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Position()
    # Without a mark, a wrong offset would never be noticed.
    return position if position.mark and position.offset > 0 else Position()


def save(folder: str, path: str, namespace: str, position: Position) -> None:
    """Save a position. Call this function only after all messages before the position are stored.

    Raises:
        OSError: the file cannot be written. The next reading then reads some messages again, but none is stored twice.
    """
    files.make_folder(folder)
    document = position._asdict() | {"path": path, "namespace": namespace}
    files.write_atomic(_file(folder, path, namespace), json.dumps(document).encode())


def _file(folder: str, path: str, namespace: str = "") -> str:
    of = os.fsencode(path) + (b"\0" + namespace.encode() if namespace else b"")
    return os.path.join(folder, sha256(of).hexdigest()[:32] + ".json")
