"""The offline derivation: each sentence that states something becomes a fact, word for word.

A statement that begins with a word such as "it" or "they" is hard to understand alone. The sentence before it becomes a
part of the same fact, unless that sentence is a fact itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nexus_tasks.event_time import Span, describe, event_time, zone
from nexus_tasks.llm.answers import Category, DeriveMaterial, Observation, Observations, PromptLine
from nexus_tasks.llm.offline.statements import is_statement, is_vague, points_back, spoken, strength
from nexus_tasks.text import NEGATIONS, STOP_WORDS, fold, shorten, words

# These numbers are chosen by hand, not measured.
MAX_CONTENT = 300  # the most characters of a fact
MAX_LABELS = 3
# A fact has the base confidence, and 0.05 more for each of the three kinds of markers: a strong word, a number or date,
# and a name (see statements.strength). So the highest confidence is 0.90.
BASE_CONFIDENCE, PER_MARKER = 0.75, 0.05

# The first pattern that matches a sentence decides the sentence's category.
_CATEGORIES: tuple[tuple[Category, str], ...] = (
    (
        "preference",
        r"prefer\w*|favou?rite|i(?:\s\w+)? (?:love|like|hate|enjoy|dislike|adore)|can['’]?t stand|rather than",
    ),
    (
        "constraint",
        r"must|allergic|allergy|deadline|not allowed|forbidden|have to|has to|can['’]?t (?:eat|drink|use|work)",
    ),
    ("plan", r"will|gonna|going to|plan(?:s|ning)?|want to|hope to|hoping to|thinking of|tomorrow|next \w+|upcoming"),
    ("plan", r"(?:i|we)['’]ll|looking forward"),
    ("opinion", r"think|believe|feel(?:s|ing)? (?:that|like)|in my opinion|seems?"),
    (
        "event",
        r"yesterday|last \w+|ago|went|visited|met|bought|got|started|finished|joined|moved|took|saw|made|won|lost",
    ),
    (
        "relationship",
        r"(?:my|our) (?:wife|husband|partner|spouse|(?:girl|boy)?friends?|sisters?|brothers?|mom|mum|mother)",
    ),
    (
        "relationship",
        r"(?:my|our) (?:dad|father|parents|sons?|daughters?|kids?|children|family|boss|manager|colleagues?)",
    ),
    ("event", r"(?:i|we|just) (?:\w+ )?\w{2,}ed"),
    ("fact", r"is|are|am|was|were|has|have|i['’]m|we['’]re|it['’]s|lives?|works?|happens?|costs?|runs?|uses?|\d+"),
)
_COMPILED = tuple((category, re.compile(rf"\b(?:{found})\b", re.IGNORECASE)) for category, found in _CATEGORIES)


def derive(material: DeriveMaterial) -> Observations:
    """The facts of the batch, in the order of the lines. Lines of authors who are not a wanted subject are ignored."""
    wanted = frozenset(material.subjects)
    lines = (line for line in material.lines if not line.context_only and line.author in wanted)
    return Observations(observations=[found for line in lines for found in _of_line(line)])


def _of_line(line: PromptLine) -> Iterator[Observation]:
    """The facts of one line. They do not depend on other lines, so any division into batches gives the same facts."""
    if line.role not in ("user", "assistant"):
        return
    seen: set[str] = set()
    for passage in _passages(spoken(line.content)):
        if fold(passage) not in seen:
            seen.add(fold(passage))
            yield _observation(passage, line)


def _passages(sentences: list[str]) -> Iterator[str]:
    """The statements. One that begins with a pronoun follows the sentence that the pronoun may refer to."""
    before = ""  # the sentence before, if that is no fact
    for sentence in sentences:
        if not is_statement(sentence, alone=len(sentences) == 1):
            before = sentence
            continue
        joined = f"{before} {sentence}"
        yield joined if points_back(sentence, before) and len(joined) <= MAX_CONTENT else sentence
        before = ""


def _observation(passage: str, line: PromptLine) -> Observation:
    content = shorten(passage, MAX_CONTENT)
    return Observation(
        subject=line.author,
        content=content,
        category=_category(content),
        confidence=round(BASE_CONFIDENCE + PER_MARKER * strength(content), 2),
        sources=[line.id],
        occurred_at=_answered(event_time(content, line.occurred_at, zone(line.time_zone))),
        labels=_labels(content),
    )


def _answered(event: Span | None) -> str | None:
    return describe(event).replace("–", "/") if event else None


def _category(sentence: str) -> Category:
    return next((category for category, pattern in _COMPILED if pattern.search(sentence)), "other")


def _labels(sentence: str) -> list[str]:
    """The three longest content words, in the order of the sentence.

    Rare words are the best labels. The offline model has no corpus to count words in, and longer words are rarer.
    """
    found = dict.fromkeys(
        word
        for word in words(sentence)
        if word not in STOP_WORDS and word not in NEGATIONS and not is_vague(word) and len(word) <= 30
    )
    longest = sorted(found, key=len, reverse=True)[:MAX_LABELS]
    return [word for word in found if word in longest]
