"""The text format of an observation log: a heading per date, and a line per note."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nexus_tasks.llm.answers import Day, Note

_DATE = re.compile(r"^## (\d{4}-\d\d-\d\d)$", re.MULTILINE)
_NOTE = re.compile(r"- \[(high|medium|low)\] (?:(\d\d:\d\d) )?(.+)")


def format_days(days: Iterable[Day]) -> str:
    """Write each note as a line under its date. Without notes the result is empty."""
    lines: list[str] = []
    for day in days:
        if day.notes:
            lines += [f"## {day.date}", *map(_line, day.notes)]
    return "\n".join(lines)


def _line(note: Note) -> str:
    return f"- [{note.priority}] {f'{note.time} ' if note.time else ''}{note.content}"


def parse_days(text: str) -> list[Day]:
    """Read the notes of a text that :func:`format_days` wrote. Lines in any other format are ignored."""
    days: list[Day] = []
    for line in text.splitlines():
        if heading := _DATE.fullmatch(line):
            days.append(Day(date=heading[1], notes=[]))
        elif days and (found := _NOTE.fullmatch(line)):
            note = {"priority": found[1], "time": found[2], "content": found[3]}
            days[-1].notes.append(Note.model_validate(note))
    return days


def append(log: str, text: str) -> str:
    """``log`` followed by ``text``. If ``text`` begins with the last date of ``log``, that heading is left out."""
    if not log or not text:
        return log or text
    last = [match[1] for match in _DATE.finditer(log)][-1:]
    first, _, rest = text.partition("\n")
    heading = _DATE.fullmatch(first)
    return f"{log}\n{rest if heading and [heading[1]] == last else text}"


def text_after(log: str, length: int) -> str:
    """``log`` without its first ``length`` characters. The result begins with the date heading of its first note."""
    rest = log[length:].removeprefix("\n")
    if not rest or rest.startswith("## "):
        return rest
    headings = [match[0] for match in _DATE.finditer(log[:length])][-1:]
    return "\n".join((*headings, rest))


def first_lines(log: str, tokens: int) -> str:
    """The whole lines at the start of ``log`` that fit into ``tokens`` tokens (characters / 4).

    The result has at least the first note of ``log``, even when this note is longer.
    """
    most = 4 * tokens
    if len(log) <= most:
        return log
    cut = log.rfind("\n", 0, most + 1)
    first_note = log.find("\n", log.find("\n- ") + 1)
    return log[: max(cut, first_note)] if max(cut, first_note) > 0 else log


def last_lines(log: str, tokens: int) -> str:
    """The whole lines at the end of ``log`` that fit into ``tokens`` tokens (characters / 4)."""
    if len(log) <= 4 * tokens:
        return log
    if tokens <= 0:
        return ""
    start = log.find("\n", len(log) - 4 * tokens - 1)
    return log[start + 1 :] if start >= 0 else ""
