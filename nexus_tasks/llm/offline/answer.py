"""The offline answer: the remembered lines that fit the question best, word for word, or none.

A question about one person is often answered by lines that only mention the same things and are about somebody else.
So each line speaks for or against an answer. It weighs as much as it has of the question's content words (0 to 1,
squared). A line about the person that the question names speaks for an answer, and a line about somebody else against
it. What somebody says to another person ("your painting") is about that person. Without a name in the question, every
line speaks for an answer.
"""

from __future__ import annotations

import re

from nexus_tasks.llm.answers import Answered, AnswerLine, AnswerMaterial, Sentence
from nexus_tasks.text import content_words

MOST_LINES = 8
WEIGHED = 30  # lines that speak for or against an answer, the best first
# What the lines must have for an answer together. On LoCoMo's development half (hashed vectors), 0.65 refuses 81 % of
# the adversarial questions (84 % and 79 % of every second one), and answers 64 % of the single-hop ones with the right
# line among eight (62 % and 66 %). Chosen on these questions: `python -m benchmarks.answering --offline`.
LEAST = 0.65
LEAST_COVERED = 0.34  # without a name: the share of the question's content words that the best line must have
# Words of questions that no answer has.
_ASKING = frozenset(
    content_words("does did do is are was were have has had what when where who which many much kind type")
)
_TO_YOU = re.compile(r"\b(?:you|your|yours|you're|you've)\b", re.IGNORECASE)
_OF_ME = re.compile(r"\b(?:i|me|my|mine|we|our|i'm|i've)\b", re.IGNORECASE)


def answer(material: AnswerMaterial) -> Answered:
    """The best lines, at most eight, each with itself as its citation."""
    asked = frozenset(content_words(material.question))
    names = {line.who: frozenset(content_words(line.who)) for line in material.lines}
    named = {who for who, parts in names.items() if parts & asked}
    wanted = asked - _ASKING - frozenset[str]().union(*names.values())
    ranked = sorted(material.lines, key=lambda line: (-line.score, line.id))
    covered = {line.id: _covered(wanted, line) for line in ranked}
    speaks = sum(_side(line, named) * covered[line.id] ** 2 for line in ranked[:WEIGHED])
    fitting = [line for line in ranked if not named or line.who in named]
    best = max((covered[line.id] for line in fitting), default=0.0)
    if speaks < LEAST if named else best < LEAST_COVERED:
        return Answered(sentences=[])
    return Answered(sentences=[_quoted(line) for line in fitting[:MOST_LINES]])


def _covered(wanted: frozenset[str], line: AnswerLine) -> float:
    return len(wanted & set(content_words(line.content))) / max(len(wanted), 1)


def _side(line: AnswerLine, named: set[str]) -> float:
    """1 for a line about a named person, -1 for a line about somebody else, and less for one that may be about both."""
    side = 1.0 if not named or line.who in named else -1.0
    if not _TO_YOU.search(line.content):
        return side
    return side / 2 if _OF_ME.search(line.content) else -side / 2


def _quoted(line: AnswerLine) -> Sentence:
    return Sentence(text=f"{line.occurred_at:%Y-%m-%d} {line.who}: {line.content}", citations=[line.id])
