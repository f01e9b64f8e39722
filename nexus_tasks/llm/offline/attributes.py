"""Find contradictions in attributes of a person: home, workplace, age, favourites and preferences.

A person has one home, one workplace, one age and one favourite of a kind at a time. So two different values contradict
each other. Preferences are an exception, because a person may prefer many things.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nexus_tasks.text import content_words

_NAME = r"(?P<value>(?-i:[A-Z])[\w'-]+(?: (?-i:[A-Z])[\w'-]+)*)"
_SELF = r"\b(?:i|we)(?:'(?:m|re|ve|d)| am| are| have)?(?: \w+ly| now| just| still)?"
_PHRASE = r"[\w'-]+(?: [\w'-]+){0,4}?"
_END = r"(?=[,.;:!?)–—]|$| and\b| but\b| now\b| these\b| in the\b)"
_PATTERNS = tuple(
    (attribute, re.compile(pattern, re.IGNORECASE))
    for attribute, pattern in (
        ("home", rf"{_SELF} (?:live|living|based) in {_NAME}"),
        ("home", rf"\bi(?:'ve)?(?: \w+ly| just)? (?:moved|relocated)(?: from {_PHRASE})? to {_NAME}"),
        ("workplace", rf"{_SELF} work(?:ing)? (?:at|for) {_NAME}"),
        ("age", rf"\bi(?:'m| am| turned| just turned) (?P<value>\d{{1,3}})(?: years old)?{_END}"),
        ("favourite", rf"\bmy favou?rite (?P<what>{_PHRASE}) (?:is|are) (?P<value>{_PHRASE}){_END}"),
        (
            "preference",
            rf"{_SELF} prefer (?P<value>{_PHRASE}) (?:over|to|rather than|instead of) (?P<than>{_PHRASE}){_END}",
        ),
        ("preference", rf"{_SELF} prefer (?P<value>{_PHRASE}){_END}"),
    )
)


class _Attribute(NamedTuple):
    attribute: str
    what: frozenset[str]
    value: frozenset[str]
    than: frozenset[str]

    def contradicts(self, other: _Attribute) -> bool:
        if (self.attribute, self.what) != (other.attribute, other.what) or self.value & other.value:
            return False
        # A person may prefer many things, so "X over Y" contradicts only a preference for Y.
        return bool(self.attribute != "preference" or self.than & other.value or other.than & self.value)


def attribute_conflict(left: str, right: str) -> str:
    """Describe the attribute in which two facts about one subject contradict each other, with its two values.

    The result is empty when no attribute differs.
    """
    for one in _attributes(left):
        for other in _attributes(right):
            if one.contradicts(other):
                values = " and ".join(" ".join(sorted(found.value)) for found in (one, other))
                return f"the {one.attribute} differs: {values}"
    return ""


def _attributes(text: str) -> Iterator[_Attribute]:
    text = text.replace("’", "'")
    for attribute, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            what, value, than = (
                frozenset(content_words(match.groupdict().get(part) or "")) for part in ("what", "value", "than")
            )
            if value:
                yield _Attribute(attribute, what, value, than)
