"""Find the time of which a text speaks, such as "last Friday", "3 May 2024" or "in June": its event time.

An event time is a span of whole days (or a minute, when a model names a clock time) in the time zone of the speaker.

    said = datetime(2026, 3, 2, 22, tzinfo=UTC)  # a Monday
    event_time("I ran on the beach last Friday.", said, zone("UTC"))  # 2026-02-27, 00:00, to 2026-02-28, 00:00
    event_time("I ran.", said, zone("UTC"))                           # None
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from typing import overload
from zoneinfo import ZoneInfo

from nexus_tasks.errors import InvalidInput

_OFFSET_NAME = re.compile(r"(?P<sign>[+-])(?P<hours>[01]\d|2[0-3]):(?P<minutes>[0-5]\d)")
_READ = 2_000  # characters of a text that are read (chosen by hand, not measured)

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_COUNTS = {
    **{"a": 1, "an": 1, "one": 1, "two": 2, "a couple of": 2, "three": 3, "four": 4, "five": 5, "six": 6},
    **{"seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12},
}
_DAYS_AWAY = {
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


def _any(words: Iterator[str] | tuple[str, ...] | dict[str, int]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_MONTH = _any(_MONTHS).replace("march", "(?-i:March)").replace("may", "(?-i:May)")  # "march" and "may" are verbs too
_COUNT = rf"\d{{1,3}}|{_any(_COUNTS)}"
_UNIT = "day|week|month|year"
_YEAR = r"(?:19|20)\d\d"
# The alternatives are in the order of their precision, because the first one that matches takes the words.
_PHRASE = re.compile(
    rf"\b(?:(?P<iso>\d{{4}}-\d\d-\d\d)"
    rf"|(?P<iso_month>{_YEAR}-(?:0[1-9]|1[0-2]))(?![-\d])"
    rf"|(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})(?:,? (?P<year>\d{{4}}))?"
    rf"|(?P<month2>{_MONTH}) (?P<day2>\d{{1,2}})(?:st|nd|rd|th)?(?!\d)(?:,? (?P<year2>\d{{4}}))?"
    rf"|(?P<month3>{_MONTH}),? (?P<year3>{_YEAR})"
    rf"|(?P<away>{_any(_DAYS_AWAY)})(?!['’]s)"
    rf"|(?P<ago>{_COUNT}) (?P<ago_unit>{_UNIT})s? ago"
    rf"|in (?P<ahead>{_COUNT}) (?P<ahead_unit>{_UNIT})s?(?!['’])\b"
    rf"|(?P<which>last|this|next) (?P<period>weekend|week|month|year)(?!['’]s)"
    rf"|(?:last|this past) (?P<weekday>{_any(_WEEKDAYS)})"
    rf"|(?:this coming) (?P<coming>{_any(_WEEKDAYS)})"
    rf"|(?P<which_month>last|this|next|in|since|during|early|late|mid) (?P<month4>{_MONTH})(?!,? \d)"
    rf"|(?:in|since|during|of) (?P<year4>{_YEAR})(?!-))\b",
    re.IGNORECASE,
)
# Words that tell whether a month without a year is behind or ahead. Those of `now` have the form of the past, and tell
# nothing. The lists are chosen by hand, on sentences of our own: see tests/unit/test_event_time.py.
_PAST = (
    "was|were|did|had|went|ran|got|took|made|met|saw|bought|found|came|gave|told|spent|won|lost|left|ate|drank|drove|flew|"
    "fell|felt|held|kept|said|sent|slept|spoke|swam|taught|thought|wrote|woke|began|broke|built|chose|grew|hurt|knew|led|"
    "paid|quit|rode|sang|sold|sat|stood|threw|wore|became|brought|caught|heard|been|gone|done|seen|back"
)
_PLANS = "hop|plan|intend|expect|want|wish|aim|prepar|schedul|propos|promis"
_STARTS = "start|begin|open|end|finish|launch|leave|arrive|return"
_TENSE = re.compile(
    r"\b(?:(?P<now>(?:am|is|are|being|get|getting|feel|feeling)(?: \w+)? \w+ed|indeed|need|speed|feed|seed|breed)"
    rf"|(?P<behind>(?:could|would|should|might|must)(?: not)? have \w+|{_PAST}|(?:have|has|had) \w+(?:ed|en))"
    r"|(?P<ahead>(?:will|wo|shall|gonna|can|ca|could|would|should|might|must|going to|about to)(?: be| have)?(?: \w+)?"
    rf"|be \w+|(?:{_PLANS})\w* (?:to|for|that)|(?:need|have|has|like|love) to|looking forward|excited"
    r"|(?:am|is|are) (?:mov|fly|leav|travell?|visit|com|return|start|open|launch|retir|marry)ing"
    rf"|(?:{_STARTS})e?s|takes place|upcoming|coming|due)"
    r"|(?P<past>\w{2,}ed))\b",
    re.IGNORECASE,
)
_WAYS = {"behind": -1, "past": -1, "ahead": 1}
_SHORT_FORM = re.compile(r"n['’]t\b|['’](?:m|re|s|ll|ve|d)\b")
_LONG_FORM = {"m": " am", "re": " are", "s": " is", "ll": " will", "ve": " have", "d": " would", "t": " not"}
_SENTENCE_END = re.compile(r"[.!?;\n](?:\s|$)")
# Every phrase has one of these words, four digits, or a number behind "in". Looking for them takes a tenth of the time.
_CLUES = (*_MONTHS, "yesterday", "today", "tonight", "tomorrow", "last", "this", "next", " ago")
_CLUE = re.compile(rf"\d{{4}}|in (?:\d|{'|'.join(_COUNTS)})")
_LONG_BEFORE = timedelta(days=1_000)
_STEP = {"last": -1, "this": 0, "next": 1}


@dataclass(frozen=True, order=True)
class Span:
    """A time from ``begin`` to just before ``end``. Both have a time zone: the zone of the speaker."""

    begin: datetime
    end: datetime


# --- time zones -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1_024)
def zone(name: str | None) -> tzinfo:
    """The time zone ``name``, such as ``Europe/Lisbon`` or ``+05:30``. ``None`` and an unknown name give UTC."""
    if match := _OFFSET_NAME.fullmatch(name or ""):
        away = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
        return timezone(-away if match["sign"] == "-" else away)
    try:
        return ZoneInfo(name) if name and name != "UTC" else UTC
    except (KeyError, ValueError, OSError):  # no such zone, or no name of a zone
        return UTC


def check_zone(field_name: str, value: object) -> str:
    """Return the name of a time zone.

    Raises:
        InvalidInput: this machine knows no such time zone.
    """
    if isinstance(value, str) and (value == "UTC" or _OFFSET_NAME.fullmatch(value) or zone(value) is not UTC):
        return value
    raise InvalidInput(
        f"{field_name} {value!r:.80} is no time zone.",
        remedy="Give a name such as Europe/Lisbon, or an offset such as +05:30.",
    )


def zone_of(when: datetime) -> str | None:
    """The name of the time zone of ``when``, or ``None`` for UTC and for a time without a zone.

    UTC is no statement about the speaker, because most producers write all times in UTC.
    """
    away = when.utcoffset()
    if not away:
        return None
    if isinstance(when.tzinfo, ZoneInfo) and when.tzinfo.key:
        return when.tzinfo.key
    minutes = round(away.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


# --- spans ------------------------------------------------------------------------------------------------------------
def event_time(text: str, said: datetime, where: tzinfo = UTC) -> Span | None:
    """The time of which ``text`` speaks. ``None`` when it names no time, or several times.

    The rules know English dates with and without a year, months, years, and times at a known distance: "yesterday",
    "3 weeks ago", "last Friday" (the latest Friday before ``said``), "next month". They do not know the ambiguous
    "next Friday". A week begins on Monday. A month without a year is the last one in "I moved in March", the coming one
    in "I will move in March", and otherwise the nearest one. A day without a year is the nearest one: on the RealMem
    conversations the words of a sentence chose worse (16 of 167 dates changed, and none of them was better).

    Args:
        text: a sentence. Only its first 2,000 characters are read.
        said: the time at which the sentence was said.
        where: the time zone of the speaker.
    """
    try:
        today = said.astimezone(where).date()
    except OverflowError:  # in year 1 or 9999
        return None
    found = sorted(set(_spans(text[:_READ], today, where)))
    if len(found) > 1:  # "on 3 May, in 2024": the shortest span, when it lies in all others
        found.sort(key=lambda span: (span.end - span.begin, span.begin))
        if any(not (span.begin <= found[0].begin and found[0].end <= span.end) for span in found):
            return None
    return found[0] if found else None


def relative_time(text: str, said: datetime, where: tzinfo = UTC) -> Span | None:
    """The event time of ``text`` when it depends on the time of speaking: of "last Friday", but not of "3 May 2024"."""
    found = event_time(text, said, where)
    try:
        return found if found and event_time(text, said - _LONG_BEFORE, where) != found else None
    except OverflowError:  # in year 1
        return found


def answered_time(answer: str | None, said: datetime, where: tzinfo = UTC) -> Span | None:
    """The time that a model's answer names: a day, a month, a year, a time, ``FIRST/LAST``, or a phrase.

    ``2026-05-03``, ``2026-05``, ``2026``, ``2026-05-03T10:30``, ``2026-05-01/2026-05-07`` and "last Friday" are such
    answers. Anything else gives ``None``.
    """
    text = " ".join((answer or "").split())[:100]
    first, slash, last = text.replace(" to ", "/").partition("/")
    if slash:
        begin, end = _point(first.strip(), where), _point(last.strip(), where)
        # Two times of one zone are compared as the clock shows them, which goes back an hour in autumn.
        in_order = begin and end and begin.begin.astimezone(UTC) < end.end.astimezone(UTC)
        return Span(begin.begin, end.end) if begin and end and in_order else None
    return _point(text, where) or (event_time(text, said, where) if text else None)


@overload
def local(when: datetime, name: str | None) -> datetime: ...
@overload
def local(when: None, name: str | None) -> None: ...
def local(when: datetime | None, name: str | None) -> datetime | None:
    """``when`` in the time zone ``name``. A time that Python's calendar cannot write there stays as it is."""
    try:
        return None if when is None else when.astimezone(zone(name))
    except OverflowError:  # in year 1 or 9999
        return when


def describe(span: Span) -> str:
    """The span as people write it: ``2026-05-03``, ``2026-05``, ``2026``, a clock time, or two days with a dash."""
    begin, end = span.begin, span.end
    if not (_begins_day(begin) and _begins_day(end)):
        return begin.strftime("%Y-%m-%d %H:%M")
    first, last = begin.date(), end.date() - timedelta(days=1)
    if first == last:
        return first.isoformat()
    if (first.day, last) == (1, _month_end(first)):
        return first.isoformat()[:7]
    if (first.month, first.day, last.month, last.day) == (1, 1, 12, 31) and first.year == last.year:
        return first.isoformat()[:4]
    return f"{first.isoformat()}–{last.isoformat()}"


def _begins_day(when: datetime) -> bool:
    """Whether a day begins at ``when``: at midnight, or later in the night in which the clock skips midnight."""
    midnight = datetime.combine(when.date(), time(), when.tzinfo)
    skipped = (when.utcoffset() or timedelta()) - (midnight.utcoffset() or timedelta())
    return when - midnight == skipped


def _point(text: str, where: tzinfo) -> Span | None:
    try:
        if re.fullmatch(r"\d{4}", text):
            return _span(date(int(text), 1, 1), date(int(text), 12, 31), where)
        if re.fullmatch(r"\d{4}-\d\d", text):
            first = date.fromisoformat(f"{text}-01")
            return _span(first, _month_end(first), where)
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return _span(date.fromisoformat(text), date.fromisoformat(text), where)
        moment = datetime.fromisoformat(text)
        if not 2 <= moment.year <= 9_998:
            return None
        begin = (moment if moment.tzinfo else moment.replace(tzinfo=where)).astimezone(UTC)
        return Span(begin.astimezone(where), (begin + timedelta(minutes=1)).astimezone(where))
    except (ValueError, OverflowError):
        return None


def _span(first: date, last: date, where: tzinfo) -> Span:
    if not 2 <= first.year <= last.year <= 9_998:
        raise OverflowError(f"{first} to {last} is not inside Python's calendar in every time zone.")
    after = last + timedelta(days=1)
    return Span(datetime.combine(first, time(), where), datetime.combine(after, time(), where))


def _spans(text: str, today: date, where: tzinfo) -> Iterator[Span]:
    """Each time that ``text`` names."""
    if text.isascii():  # beyond ASCII, letters such as the dotless ı match others
        small = text.lower()
        if not any(clue in small for clue in _CLUES) and not _CLUE.search(small):
            return
    for match in _PHRASE.finditer(text):
        part = {name: value.lower() for name, value in match.groupdict().items() if value}
        try:
            yield _span(*(_absolute(part, today) or _relative(part, today, partial(_way, text, match))), where)
        except (KeyError, ValueError, OverflowError):
            # No such day exists (31 February), Python's calendar does not reach it, or a word has a letter that only a
            # search without regard to case takes for another one: "yeſterday", "tonıght".
            continue


def _way(text: str, month: re.Match[str]) -> int:
    """Whether the sentence with a month tells of the past (-1), of the future (1), or of neither (0).

    The last word before the month that tells it decides, and else the first one after the month.
    """
    ends = [0, *(end.end() for end in _SENTENCE_END.finditer(text)), len(text)]
    begin = max(end for end in ends if end <= month.start())
    before = _ways(text[begin : month.start()])
    if before:
        return before[-1]
    after = _ways(text[month.end() : min(end for end in ends if end >= month.end())])
    return after[0] if after else 0


def _ways(words: str) -> list[int]:
    plain = _SHORT_FORM.sub(lambda short: _LONG_FORM[short[0].lstrip("n'’")], words)
    return [_WAYS[match.lastgroup] for match in _TENSE.finditer(plain) if match.lastgroup in _WAYS]


def _absolute(part: dict[str, str], today: date) -> tuple[date, date] | None:
    if "iso" in part:
        day = date.fromisoformat(part["iso"])
        return day, day
    if "iso_month" in part:
        return _month(date.fromisoformat(f"{part['iso_month']}-01"))
    if name := part.get("month") or part.get("month2"):
        number, day_number = _MONTHS.index(name) + 1, int(part.get("day") or part["day2"])
        year = part.get("year") or part.get("year2")
        day = date(int(year), number, day_number) if year else _nearest(number, day_number, today)
        return day, day
    if "month3" in part:
        return _month(date(int(part["year3"]), _MONTHS.index(part["month3"]) + 1, 1))
    if "year4" in part:
        return date(int(part["year4"]), 1, 1), date(int(part["year4"]), 12, 31)
    return None


def _relative(part: dict[str, str], today: date, way: Callable[[], int]) -> tuple[date, date]:
    if "away" in part:
        day = today + timedelta(days=_DAYS_AWAY[part["away"]])
        return day, day
    if "weekday" in part:
        day = today - timedelta(days=(today.weekday() - _WEEKDAYS.index(part["weekday"]) - 1) % 7 + 1)
        return day, day
    if "coming" in part:
        day = today + timedelta(days=(_WEEKDAYS.index(part["coming"]) - today.weekday() - 1) % 7 + 1)
        return day, day
    if "month4" in part:
        return _month(_named_month(_MONTHS.index(part["month4"]) + 1, part["which_month"], today, way))
    if "period" in part:
        return _period(part["period"], _STEP[part["which"]], today)
    count = part.get("ago") or part["ahead"]
    number = _COUNTS.get(count) or int(count)
    return _period(part.get("ago_unit") or part["ahead_unit"], -number if "ago" in part else number, today)


def _period(unit: str, step: int, today: date) -> tuple[date, date]:
    """The day, week, weekend, month or year that is ``step`` of its kind away from ``today``."""
    if unit == "day":
        day = today + timedelta(days=step)
        return day, day
    if unit == "year":
        return date(today.year + step, 1, 1), date(today.year + step, 12, 31)
    if unit == "month":
        months = today.year * 12 + today.month - 1 + step
        return _month(date(months // 12, months % 12 + 1, 1))
    monday = today - timedelta(days=today.weekday()) + timedelta(weeks=step)
    return (monday + timedelta(days=5) if unit == "weekend" else monday), monday + timedelta(days=6)


def _named_month(number: int, which: str, today: date, way: Callable[[], int]) -> date:
    """The first day of a month without a year."""
    this = date(today.year, number, 1)
    if which == "next":
        return this if this > today else date(today.year + 1, number, 1)
    if which == "this":
        return this
    month = today.replace(day=1)
    direction = {"last": -1, "since": -1}.get(which) or way()
    if direction < 0:
        return this if this < month or (this == month and which != "last") else date(today.year - 1, number, 1)
    if direction > 0:
        return this if this >= month else date(today.year + 1, number, 1)
    return _nearest(number, 1, month)


def _nearest(month: int, day: int, today: date) -> date:
    candidates = []
    for year in (today.year - 1, today.year, today.year + 1):
        try:
            candidates.append(date(year, month, day))
        except ValueError:
            continue  # 29 February
    return min(candidates, key=lambda one: abs((one - today).days))


def _month(first: date) -> tuple[date, date]:
    return first, _month_end(first)


def _month_end(first: date) -> date:
    return (first.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
