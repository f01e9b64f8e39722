"""The format of an entry: one line of JSON whose last field is a CRC-32 of everything before it."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple
from zlib import crc32

_TAIL = len(',"checksum":"01234567"}')


class Entry(NamedTuple):
    """An entry: the data that one call of :meth:`SessionBuffer.append` wrote."""

    entry_seq: int  # 1, 2, 3, … within the session; never used twice
    time: float  # the time of the append, seconds since 1970
    context_type: str  # the type of the payload; it decides how the payload is read when the entry is stored
    payload: Any  # a JSON value
    # Random; a copy of the buffer may have other entries of the same numbers. Empty in a line of the release 0.1.0.
    id: str = ""


def as_json(value: object) -> bytes:
    """Write ``value`` as one line of JSON in ASCII. Each character is one byte, so a torn write splits no character.

    Raises:
        ValueError: ``value`` contains a NaN, an infinite number or a reference to itself.
        TypeError: ``value`` contains an object that JSON cannot express.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def line(entry_seq: int, time: float, context_type: bytes, payload: bytes) -> bytes:
    """The line of a new entry. ``context_type`` and ``payload`` are JSON that :func:`as_json` made."""
    head = b'{"entry_seq":%d,"id":"%s","time":%.6f' % (entry_seq, os.urandom(8).hex().encode(), time)
    body = b'%s,"context_type":%s,"payload":%s' % (head, context_type, payload)
    return b'%s,"checksum":"%08x"}\n' % (body, crc32(body))


def parse(line: bytes) -> Entry:
    """Read an entry from its line. ``line`` has no line break at its end.

    Raises:
        ValueError: the line is damaged. The message gives the reason.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail[:13] != b',"checksum":"':
        raise ValueError("no checksum at its end")
    if tail[13:21] != b"%08x" % crc32(body):
        raise ValueError("the checksum does not match")
    found = json.loads(body + b"}")
    return Entry(found["entry_seq"], found["time"], found["context_type"], found["payload"], found.get("id", ""))
