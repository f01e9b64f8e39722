"""Find values of closed classes in a sentence: times, dates, weekdays, months, years and numbers.

When two statements about one matter differ in one of these values, the value has changed. Example: "Deploys happen on
Tuesday" and "deploys happen on Thursdays".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from nexus_tasks.text import stem

_MONTHS = (
    "(?i:january|february|april|june|july|august|september|october|november|december)"
    "|March|May"  # "March" and "May" need a capital letter, because "march" and "may" are verbs
)
_ORDINAL = r"(\d{1,2})(?:st|nd|rd|th)?"
_NUMBERS = {
    **{
        "two": 2,
        "three": 3,
        "four": 4,
        "five": 5,
        "six": 6,
        "seven": 7,
        "eight": 8,
        "nine": 9,
        "ten": 10,
        "eleven": 11,
    },
    **{"twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100},
}


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1] or match[4]), match[2] or match[5] or "00", (match[3] or "").lower()
    return f"{hour % 12 + 12 * (half == 'p') if half else hour}:{minute}"


def _date(match: re.Match[str]) -> str:
    return f"{(match[2] or match[3])[:3].lower()} {int(match[1] or match[4])}"


def _weekday(match: re.Match[str]) -> str:
    return match[0][:3].lower()


def _number(match: re.Match[str]) -> str:
    word = match[0].lower().replace(",", "").rstrip(".:")
    if word in _NUMBERS:
        return str(_NUMBERS[word])
    return f"{float(word[:-1]) * 1000:g}" if re.fullmatch(r"\d+(\.\d+)?k", word) else word


def _word(match: re.Match[str]) -> str:
    return stem(match[0].lower())


# The order matters, because a value that one class takes is removed before the next class is read.
_CLASSES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    ("time", re.compile(r"\b(\d{1,2})(?:[:.](\d\d))?\s?(?i:([ap])\.?m\b\.?)|\b(\d{1,2}):(\d\d)\b"), _time),
    ("date", re.compile(rf"\b{_ORDINAL}(?: of)? ({_MONTHS})\b|\b({_MONTHS}) {_ORDINAL}\b"), _date),
    (
        "weekday",
        re.compile(r"\b(?:(?i:(?:mon|tues|wednes|thurs|fri|satur|sun)days?)|(?:Mon|Tues?|Wed|Thu|Thurs|Fri))\b"),
        _weekday,
    ),
    ("month", re.compile(rf"\b(?:{_MONTHS})\b"), _word),
    ("year", re.compile(r"\b(?:19|20)\d\d\b"), _word),
    ("number", re.compile(rf"\b\d[\d.,:]*\w*|\b(?i:{'|'.join(_NUMBERS)})\b"), _number),
)


def take_slots(text: str) -> tuple[str, Mapping[str, list[str]]]:
    """``text`` without its closed-class values, and the values by class, in the order of the text.

    Each value has one spelling, for example "17:00" for "5 pm". A value that the text names twice is there twice.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for kind, pattern, normal in _CLASSES:
        for match in pattern.finditer(text):
            found[kind].append(normal(match))
        text = pattern.sub(" ", text)
    return text, dict(found)
