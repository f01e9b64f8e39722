"""Reading a segment: every line that is as it was written, and where the others are."""

from __future__ import annotations

from typing import NamedTuple

from nexus_tasks.buffer.entry import Entry, parse


class Segment(NamedTuple):
    """A sealed file and its entries: what is stored in one go and then acknowledged."""

    agent: str
    session: str
    start_id: str  # of this buffering of the session: with ``entry_seq`` it names an entry for good
    path: str
    size: int  # bytes
    entries: tuple[Entry, ...]


class Flaw(NamedTuple):
    """A stretch that holds no entry. ``torn``: it is the end of the file and lacks its line break."""

    line: int
    offset: int
    raw: bytes
    reason: str
    torn: bool


def read(data: bytes) -> tuple[list[Entry], list[Flaw]]:
    """The entries of a segment's bytes, and what is wrong with the rest."""
    entries, flaws = list[Entry](), list[Flaw]()
    offset = 0
    lines = data.split(b"\n")
    last = lines.pop()  # what follows the last line break: nothing, unless a write was cut off
    for number, raw in enumerate(lines, start=1):
        # A power cut may leave zeros where a page had not reached the disk; what follows them may be whole.
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
