"""Read a fact by rules: its words, its denials, the things that it replaces, and the values that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from nexus_tasks.llm.offline.slots import take_slots
from nexus_tasks.text import NEGATIONS, STOP_WORDS, content_key, content_words, meaning_markers, stem, words

Words = frozenset[str]

REACH = 2  # a negation denies the next two content words of its clause (chosen by hand, not measured)
_CHANGE_VERB = r"(?:switch|mov|chang|shift|reschedul|migrat|push|postpon)(?:e|es|ed|ing)?"
_CLAUSE = r"[^,;!?()–—]"


def _rule(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


# Phrases with a negation that deny nothing, such as "can't wait".
_IDIOM = _rule(
    r"\b(?:can|could)(?:n['’]t|not) (?:wait|believe|imagine|help|complain|agree|ask for|be (?:happier|more|better))\b",
    r"\bnot (?:only|just|sure|to mention|too|so|that|alone|always|all|many|much|yet|far)\b",
    r"\b(?:if|or|why|of course) not\b|\bnever (?:forget|give up|stop|too late|know|end\w*|fails?|gets? old)\b",
    r"\bno (?:doubt|matter|wonder|way|problem|idea|worries|one|regrets|(?:longer|more|less) than)\b",
    r"\bnever (?:thought|felt|ever|been (?:happier|better))\b",
    r"\bdon['’]?t (?:worry|mind|forget|know|get me wrong|you)\b|\bwon['’]?t (?:let|regret|be easy|be long)\b",
    r"\bwouldn['’]t (?:trade|change|miss|be|have)\b|\bnothing (?:like|beats|better|compares|else)\b",
    r"\bwithout (?:you|your|them|him|her|it|a doubt|question)\b",
)
# Phrases that say that something has ended. The words after the phrase count as negated.
_ENDED = _rule(
    r"\bno longer\b|(?<!get )(?<!got )(?<!getting )(?<!['’]m )(?<!am )(?<!be )\bused to\b(?! (?:being|it|the)\b)",
    r"\b(?:stopped|quit|gave up|given up)\b(?= (?:\w+ )?\w+ing\b)",
)
_UPDATED = _rule(r"\b(?:now|nowadays|these days|from now on|no longer|any ?more|instead|from \w+ on)\b")
_REPLACED = _rule(
    rf"\b(?:instead of|rather than|in place of) (?P<one>{_CLAUSE}+)",
    rf"\b{_CHANGE_VERB}\b{_CLAUSE}*?\bfrom (?P<two>{_CLAUSE}+?) to\b",
)
_SWITCHED = _rule(rf"\b{_CHANGE_VERB}(?: over)? from\b")
_TARGET = _rule(rf"\b{_CHANGE_VERB}\b{_CLAUSE}*?\bto (?P<target>{_CLAUSE}+)")
_HABIT = _rule(
    r"\b(?:i|we)(?: always| usually| only| mostly| still| really)? "
    r"(?:drink|eat|use|prefer|take|have|order|wear|play|run|write|drive|ride|need|love|like|buy|read|watch|deploy)\b"
)
_MARKER = _rule(
    r"\b(?:now|nowadays|these days|from now on|any ?more|instead(?! of)|currently|actually|again|already|still)\b",
    r"\b(?:finally|lately|recently)\b",
)
_BREAK = _rule(r"(?<![,.;:!?()–—])[,.;:!?()–—]++(?=\s|$)|\s-+\s|\b(?:but|and|because|so|when|while|if)\b")
_PAST = _rule(
    r"\b(?:went|ran|was|were|did|had|got|took|made|met|saw|bought|found|came|gave|told|spent|won|lost|left|ate|drank)\b",
    r"\b(?:drove|flew|felt|held|kept|said|sent|slept|spoke|swam|taught|thought|wrote|woke|yesterday|ago|last \w+)\b",
    r"\b(?!need|speed|indeed|feed|based|called|named|used|scheduled|planned|fixed|located|married|set)\w{2,}ed\b",
)
# These negations deny an event in the past, not a state. read_fact() ignores them.
_PAST_NEGATIONS = frozenset(("didn't", "didnt", "wasn't", "weren't", "couldn't", "hadn't", "haven't", "hasn't"))
_CHANGE_STEMS = frozenset(content_words("switch move moving change shift reschedule migrate push postpone"))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The content of one fact. All words are stems.

    Closed-class values are times, dates, weekdays, months, years and numbers (see the module ``slots``).
    """

    key: str  # the result of text.content_key: two facts with the same words in the same order have the same key
    content: Words  # the content words, except negations, markers of change and closed-class values
    slots: Mapping[str, Words]  # the closed-class values, by class
    numbers: int  # how many times the fact names a number
    markers: Words  # words for persons, times, conditions and directions (see text.meaning_markers)
    denied: Words  # the words that a negation denies
    replaced: Words  # the words and closed-class values of X in "instead of X" or "switched from X to Y"
    switched: bool  # whether "from" follows directly on the verb: "switched from X", but not "moved the meeting from X"
    target: Words  # the classes of the closed-class values to which something was moved
    updated: bool  # whether the fact says that it is about the present
    habit: bool  # whether the fact is about a habit or liking of its speaker
    past: bool  # whether the fact is about a past event

    @property
    def everything(self) -> Words:
        """The content words and the closed-class values together."""
        return self.content.union(*self.slots.values())


@lru_cache(maxsize=1_024)  # A reflection reads at most 900 facts, each one many times. A reading takes 5 KB.
def read_fact(text: str) -> Reading:
    """Read the fact ``text`` by the rules of this module."""
    plain = _IDIOM.sub(" ", text.replace("’", "'"))
    replaced = " ".join(match["one"] or match["two"] for match in _REPLACED.finditer(plain))
    claim = _ENDED.sub(" not ", _MARKER.sub(" ", _REPLACED.sub(" ", plain)))
    rest, values = take_slots(claim)
    return Reading(
        key=content_key(text),
        content=_content(rest) - _CHANGE_STEMS,
        slots={kind: frozenset(named) for kind, named in values.items()},
        numbers=len(values.get("number", ())),
        markers=frozenset(meaning_markers(claim)),
        denied=frozenset(_denied(claim)),
        replaced=_values(replaced),
        switched=bool(_SWITCHED.search(plain)),
        target=frozenset(take_slots(" ".join(match["target"] for match in _TARGET.finditer(plain)))[1]),
        updated=bool(_UPDATED.search(plain)),
        habit=bool(_HABIT.search(claim)),
        past=bool(_PAST.search(claim)),
    )


def _content(text: str) -> Words:
    return frozenset(content_words(text)) - {"not"}


def _values(text: str) -> Words:
    rest, slots = take_slots(text)
    return _content(rest).union(*slots.values())


def _denied(claim: str) -> Iterator[str]:
    """The denied stems: the stems of the first two content words after a negation, in the same clause."""
    for clause in _BREAK.split(claim):
        left = 0
        for word in words(clause):
            if word in NEGATIONS:
                left = 0 if word in _PAST_NEGATIONS else REACH
            elif left and word not in STOP_WORDS:
                left -= 1
                yield stem(word.removesuffix("'s"))
