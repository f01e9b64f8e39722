"""One entry as one line of JSON that ends with a checksum of everything before it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from zlib import crc32

_TAIL = len(',"checksum":"01234567"}')


class Entry(NamedTuple):
    """What one :meth:`SessionBuffer.append` wrote."""

    entry_seq: int  # 1, 2, 3, … within the session; never given twice
    time: float  # when it was appended, seconds since 1970
    context_type: str  # how whoever stores it is to read the payload
    payload: Any  # JSON


def as_json(value: object) -> bytes:
    """``value`` as JSON on one line, in ASCII: no character of it can be torn, or be a line break.

    Raises:
        ValueError: it is no JSON (a NaN, a number that is too large, a circle).
        TypeError: it holds an object that JSON has no form for.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def line(entry_seq: int, time: float, context_type: bytes, payload: bytes) -> bytes:
    """The line of an entry whose type and payload are JSON already."""
    body = b'{"entry_seq":%d,"time":%.6f,"context_type":%s,"payload":%s' % (entry_seq, time, context_type, payload)
    return b'%s,"checksum":"%08x"}\n' % (body, crc32(body))


def parse(line: bytes) -> Entry:
    """The entry of a line without its line break.

    Raises:
        ValueError: the line is not as it was written; says why.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail[:13] != b',"checksum":"':
        raise ValueError("no checksum at its end")
    if tail[13:21] != b"%08x" % crc32(body):
        raise ValueError("the checksum is another")
    found = json.loads(body + b"}")
    return Entry(found["entry_seq"], found["time"], found["context_type"], found["payload"])
