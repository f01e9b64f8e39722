"""The day that a sentence names, when it can mean only one day."""

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
    """The ISO date that ``sentence``, said at ``said``, names; ``None`` when it names no day, or more than one.

    The rules know full dates, and days at a known distance ("yesterday", "3 days ago", "last Friday": the latest Friday
    before ``said``). They do not know weeks, months, dates without a year, or the ambiguous "next Friday".
    Days are days of ``said``'s time zone. Stored times are in UTC, so near local midnight the result may be a day off.
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
            continue  # There is no such day (31 February), or it lies outside the calendar.


def _offset(part: dict[str, str | None], said: date) -> int:
    if part["offset"]:
        return _OFFSETS[part["offset"].lower()]
    if part["weekday"]:
        return -((said.weekday() - _WEEKDAYS.index(part["weekday"].lower()) - 1) % 7 + 1)
    count = (part["ago"] or part["ahead"] or "").lower()
    return (_COUNTS.get(count) or int(count)) * (-1 if part["ago"] else 1)
