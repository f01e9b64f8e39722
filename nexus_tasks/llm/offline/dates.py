"""Find the day that a sentence names, such as "yesterday" or "3 May 2024"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_COUNTS = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_OFFSETS = {
    "the day before yesterday": -2,
    "yesterday": -1,
    "last night": -1,
    "today": 0,
    "tonight": 0,
    "this morning": 0,
    "this afternoon": 0,
    "this evening": 0,
    "tomorrow": 1,
    "the day after tomorrow": 2,
}
_MONTH = f"(?P<{{}}>{'|'.join(_MONTHS)})"
_DATE = re.compile(
    rf"\b(?:(?P<iso>\d{{4}}-\d\d-\d\d)"
    rf"|(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH.format('month')},? (?P<year>\d{{4}})"
    rf"|{_MONTH.format('month2')} (?P<day2>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year2>\d{{4}})"
    rf"|(?P<offset>{'|'.join(sorted(_OFFSETS, key=len, reverse=True))})(?!['’]s)"
    rf"|(?P<ago>\d{{1,3}}|{'|'.join(_COUNTS)}) days? ago"
    rf"|in (?P<ahead>\d{{1,3}}|{'|'.join(_COUNTS)}) days?(?!['’])"
    rf"|last (?P<weekday>{'|'.join(_WEEKDAYS)}))\b",
    re.IGNORECASE,
)


def day_meant(sentence: str, said: datetime) -> str | None:
    """The ISO date that ``sentence`` names, or ``None`` when the sentence names no day or more than one day.

    The rules know full dates, and days at a known distance, such as "yesterday", "3 days ago" and "last Friday" (the
    latest Friday before ``said``). The rules do not know weeks, months, dates without a year, or the ambiguous "next
    Friday". The result is a day in the time zone of ``said``. Stored times are in UTC, so the result may be one day
    wrong for a sentence that was said near local midnight.

    Args:
        sentence: the sentence.
        said: the time at which the sentence was said.
    """
    found = set(_days(sentence, said.date()))
    return found.pop().isoformat() if len(found) == 1 else None


def _days(sentence: str, said: date) -> Iterator[date]:
    for match in _DATE.finditer(sentence):
        part = match.groupdict()
        try:
            if part["iso"]:
                yield date.fromisoformat(part["iso"])
            elif month := part["month"] or part["month2"]:
                number = _MONTHS.index(month.lower()) + 1
                yield date(int(part["year"] or part["year2"]), number, int(part["day"] or part["day2"]))
            else:
                yield date.fromordinal(said.toordinal() + _offset(part, said))
        except (ValueError, OverflowError):
            continue  # No such day exists (31 February), or Python's calendar does not reach the day.


def _offset(part: dict[str, str | None], said: date) -> int:
    if part["offset"]:
        return _OFFSETS[part["offset"].lower()]
    if part["weekday"]:
        return -((said.weekday() - _WEEKDAYS.index(part["weekday"].lower()) - 1) % 7 + 1)
    count = (part["ago"] or part["ahead"] or "").lower()
    return (_COUNTS.get(count) or int(count)) * (-1 if part["ago"] else 1)
