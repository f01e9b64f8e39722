"""How much of what people wrote down about a conversation the stored facts cover, and how many facts nothing supports.

What people wrote down are the observations of LoCoMo and the memory points of RealMem. They are in other words than the
conversation, so words are compared: stems without stop words and names.

- A written point is **covered** when one stored fact has at least half of its words.
- A fact is **unsupported** when the messages that it rests on have less than half of its words.

The measure knows no synonyms, so a covered point may count as missing. It compares two releases, or two models, on the
same points; the number alone says little.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.text import content_words

HALF = 0.5  # chosen by hand, not measured

_FACTS = text(
    """
    SELECT m.content, m.author, array_agg(source.author || ' ' || source.content)
    FROM memories AS m
    JOIN namespaces ON namespaces.id = m.namespace_id
    LEFT JOIN evidence AS e ON e.memory_id = m.id AND e.role = 'derived_from'
    LEFT JOIN memories AS source ON source.id = e.source_id
    WHERE namespaces.name = :namespace AND m.level = 'explicit' GROUP BY m.id
    """
)


@dataclass(frozen=True)
class Fact:
    """The words of a stored fact, and those of the messages that it rests on."""

    words: frozenset[str]
    said: frozenset[str]


def stored_facts(tx: Transaction, namespace: str) -> list[Fact]:
    """All facts of a namespace, also superseded ones."""
    return [
        Fact(_words([content]), _words([subject or "", *(one for one in said if one)]))
        for content, subject, said in tx.execute(_FACTS, {"namespace": namespace})
    ]


def locomo_points(path: Path, sample_id: str) -> list[str]:
    """The observations of one of LoCoMo's conversations."""
    [sample] = [one for one in json.loads(path.read_text(encoding="utf-8")) if one["sample_id"] == sample_id]
    by_speaker = [found for session in sample["observation"].values() for found in session.values()]
    return [said for found in by_speaker for said, _turn in found]


def realmem_points(path: Path, sessions: int | None) -> list[str]:
    """The memory points of a persona's first ``sessions`` sessions, without the topic in 【】 before each."""
    dialogues = json.loads(path.read_text(encoding="utf-8"))["dialogues"][:sessions]
    points = [point["content"] for one in dialogues for point in one["extracted_memory"]]
    return [point.partition("】")[2].strip() or point for point in points]


def covered(points: Iterable[str], facts: Sequence[Fact], names: Iterable[str]) -> list[float]:
    """For each written point, 1 when one fact has half of its words, else 0. ``names`` count as no words."""
    left_out = _words(names)
    return [float(any(_share(words, fact.words) >= HALF for fact in facts)) for words in _each(points, left_out)]


def unsupported(facts: Iterable[Fact]) -> list[float]:
    """For each fact, 1 when the messages that it rests on have less than half of its words, else 0."""
    return [float(_share(fact.words, fact.said) < HALF) for fact in facts]


def _each(points: Iterable[str], left_out: frozenset[str]) -> list[frozenset[str]]:
    return [words for point in points if (words := _words([point]) - left_out)]


def _words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(word for each in texts for word in content_words(each))


def _share(wanted: frozenset[str], there: frozenset[str]) -> float:
    return len(wanted & there) / len(wanted) if wanted else 1.0
