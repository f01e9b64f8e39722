"""The text format of an observation log: a heading per date, and a line per note.

A line is ``- [#3] [#5] [high] 09:00 What was said.`` The numbers in front are the note's sources: the ``seq`` of the
messages. They are not the ids of the messages, because an import changes the ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nexus_tasks.llm.answers import Day, Note

_DATE = re.compile(r"^## (\d{4}-\d\d-\d\d)$", re.MULTILINE)
_NOTE = re.compile(r"- ((?:\[#\d{1,18}\] )*+)\[(high|medium|low)\] (?:((?:[01][0-9]|2[0-3]):[0-5][0-9]) )?(.+)")
_SOURCES = re.compile(r"^- ((?:\[#\d{1,18}\] )++)", re.MULTILINE)
_SOURCE = re.compile(r"\[#(\d{1,18})\] ")


def format_days(days: Iterable[Day]) -> str:
    """Write each note as a line under its date. A date has one heading. Without notes the result is empty."""
    lines: dict[str, list[str]] = {}
    for day in days:
        if day.notes:
            lines.setdefault(day.date, []).extend(map(line_of, day.notes))
    return "\n".join(line for date, notes in lines.items() for line in (f"## {date}", *notes))


def line_of(note: Note) -> str:
    """A note as a line of the log."""
    cited = "".join(f"[#{seq}] " for seq in note.sources)
    return f"- {cited}[{note.priority}] {f'{note.time} ' if note.time else ''}{note.content}"


def parse_days(text: str) -> list[Day]:
    """Read the notes of a text that :func:`format_days` wrote. Lines in any other format are ignored."""
    days: list[Day] = []
    for line in text.splitlines():
        if heading := _DATE.fullmatch(line):
            days.append(Day(date=heading[1], notes=[]))
        elif days and (found := _NOTE.fullmatch(line)):
            sources = [int(number) for number in _SOURCE.findall(found[1])]
            note: dict[str, Any] = {
                "sources": sources,
                "priority": found[2],
                "time": found[3],
                "content": found[4],
            }
            # Not checked again: in a log, a tag in a note may have become longer than in the answer.
            days[-1].notes.append(Note.model_construct(**note))
    return days


def sources(text: str) -> set[int]:
    """The sources of all notes of a log."""
    return {int(number) for cited in _SOURCES.findall(text) for number in _SOURCE.findall(cited)}


def without_sources(text: str) -> str:
    """A log without the sources of its notes."""
    return _SOURCES.sub("- ", text)


def cited(text: str, ids: Mapping[int, int]) -> str:
    """A log as a reader sees it: citations such as ``[m17]`` instead of sources, and one heading for each date.

    Args:
        ids: the id of the message of each ``seq``. A source without a message is left out.
    """

    def shown(found: re.Match[str]) -> str:
        known = (ids.get(int(number)) for number in _SOURCE.findall(found[1]))
        return "- " + "".join(f"[m{one}] " for one in known if one is not None)

    return _SOURCES.sub(shown, _one_heading_a_day(text))


def _one_heading_a_day(text: str) -> str:
    headings = _DATE.findall(text)
    if len(set(headings)) == len(headings):
        return text
    days: dict[str, list[str]] = {}
    date = ""
    for line in text.splitlines():
        if heading := _DATE.fullmatch(line):
            date = heading[1]
        else:
            days.setdefault(date, []).append(line)
    return "\n".join(_of_days(days))


def _of_days(days: Mapping[str, list[str]]) -> Iterator[str]:
    for date, lines in sorted(days.items()):
        if date:
            yield f"## {date}"
        yield from lines


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
    return log[: max(cut, first_note)] if first_note > 0 else log


def without_least_important(log: str, tokens: int) -> str:
    """``log`` without its least important notes, so that it fits into ``tokens`` tokens (characters / 4).

    Notes of the priority ``low`` are left out first, then ``medium``, and of each the oldest first. Notes of the
    priority ``high`` stay, so the result may be longer than ``tokens``.
    """
    days = parse_days(log)
    notes = [(note.priority, note) for day in days for note in day.notes]
    room, length, left_out = 4 * tokens, len(log), set[int]()
    for priority in ("low", "medium"):
        for found, note in notes:
            if length <= room:
                break
            if found == priority:
                left_out.add(id(note))
                length -= len(line_of(note)) + 1
    for day in days:
        day.notes[:] = [note for note in day.notes if id(note) not in left_out]
    return format_days(days)


def last_lines(log: str, tokens: int) -> str:
    """The whole lines at the end of ``log`` that fit into ``tokens`` tokens (characters / 4)."""
    if len(log) <= 4 * tokens:
        return log
    if tokens <= 0:
        return ""
    start = log.find("\n", len(log) - 4 * tokens - 1)
    return log[start + 1 :] if start >= 0 else ""
