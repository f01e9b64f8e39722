"""Reading a segment: the entries in its lines, and the position of each damaged part."""

from __future__ import annotations

from typing import NamedTuple

from nexus_tasks.buffer.entry import Entry, parse


class Segment(NamedTuple):
    """A sealed file and its entries. A segment is stored and acknowledged as a whole."""

    agent: str
    session: str
    start_id: str  # random, made with the session's folder; with ``entry_seq`` it identifies an entry for good
    path: str
    size: int  # bytes
    entries: tuple[Entry, ...]


class Flaw(NamedTuple):
    """A part of the file that holds no entry. ``torn``: it is the end of the file and lacks its line break."""

    line: int  # counted from 1
    offset: int  # bytes from the file's start
    raw: bytes
    reason: str
    torn: bool


def read(data: bytes) -> tuple[list[Entry], list[Flaw]]:
    """The entries in a segment's bytes, and the flaws between them."""
    entries, flaws = list[Entry](), list[Flaw]()
    offset = 0
    lines = data.split(b"\n")
    last = lines.pop()  # the bytes after the last line break: none, unless a write was cut off
    for number, raw in enumerate(lines, start=1):
        # A power cut leaves zeros where a page had not reached the disk. An entry after the zeros may be whole.
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
