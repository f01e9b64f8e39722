"""Reading a segment: the entries in its lines, and the position of each damaged part."""

from __future__ import annotations

from typing import NamedTuple

from nexus_tasks.buffer.entry import Entry, parse


class Segment(NamedTuple):
    """A sealed file and its entries. A segment is stored and acknowledged as a whole."""

    agent: str
    session: str
    start_id: str  # a random id of the session's folder, which a copy of the folder has too
    path: str
    size: int  # bytes
    entries: tuple[Entry, ...]


class Flaw(NamedTuple):
    """A damaged part of a segment's file."""

    line: int  # the line's number, counted from 1
    offset: int  # bytes from the file's start
    raw: bytes  # the damaged bytes
    reason: str
    torn: bool  # whether the part is the end of the file and has no line break


def read(data: bytes) -> tuple[list[Entry], list[Flaw]]:
    """Read a segment's bytes. Returns the entries and the damaged parts."""
    entries, flaws = list[Entry](), list[Flaw]()
    offset = 0
    lines = data.split(b"\n")
    last = lines.pop()  # the bytes after the last line break; empty unless a write was cut off
    for number, raw in enumerate(lines, start=1):
        # After a power cut the file may have zeros in place of pages that the disk had not stored yet. An entry after
        # the zeros may be whole.
        text = raw.lstrip(b"\0")
        try:
            entries.append(parse(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            flaws.append(Flaw(number, offset, raw, str(error) or type(error).__name__, torn=False))
        else:
            if len(text) < len(raw):
                flaws.append(Flaw(number, offset, raw[: len(raw) - len(text)], "zeros before it", torn=False))
        offset += len(raw) + 1
    if last:
        why = "zeros at the end" if not last.strip(b"\0") else "its end is missing"
        flaws.append(Flaw(len(lines) + 1, offset, last, why, torn=True))
    return entries, flaws
