"""How candidates become one order: inverse document frequency, which words find, fusion, neighbours, near-ties."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus_tasks.cognition.retrieval.bm25_word_weights import MOST_POSTINGS, inverse_document_frequency, weigh_words
from nexus_tasks.cognition.retrieval.fusion import NEIGHBOUR_SHARE, Ranked, decayed, rank, vector_weight
from nexus_tasks.cognition.retrieval.search import explain
from nexus_tasks.storage.searching.candidates import Candidate
from nexus_tasks.storage.searching.query_stats import QueryStats, Word

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def opening(*memories: int, of: int = 100_000) -> QueryStats:
    """A question whose words (with keys 1, 2, …) are in so many memories each."""
    words = tuple(Word(key=key, memories=n) for key, n in enumerate(memories, 1))
    return QueryStats(words=words, memories=of, mean_length=10.0, vectors=0, narrow=False)


def candidate(number: int, **fields: Any) -> Candidate:
    """A memory that fits, of noon, without a score by any arm."""
    defaults: dict[str, Any] = {
        "session_id": None,
        "seq": None,
        "fits": True,
        "words": 0.0,
        "vector": 0.0,
        "occurred_at": NOON,
        "confidence": 1.0,
        "validated_at": NOON,
    }
    return Candidate(id=number, **(defaults | fields))


def order(*found: Candidate, weight: float = 1.0, limit: int = 10) -> list[int]:
    """The ids, best first."""
    return [one.id for one in rank(found, weight=weight, limit=limit)]


# --- words ------------------------------------------------------------------------------------------------------------
def test_a_rarer_word_weighs_more_and_none_weighs_less_than_nothing() -> None:
    weights = [inverse_document_frequency(Word(key=1, memories=n), 1_000) for n in (1, 10, 100, 999, 1_000)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == pytest.approx(math.log(1 + 999.5 / 1.5))
    assert weights[-1] > 0
    assert inverse_document_frequency(Word(key=1, memories=7), 3) > 0  # counted while memories are being erased


def test_the_rarest_words_find_within_the_bound_and_the_others_only_score() -> None:
    words = weigh_words(opening(MOST_POSTINGS - 100, 100, 1, 50_000))
    assert [(word.key, word.finds) for word in words] == [(3, True), (2, True), (1, False), (4, False)]
    assert [word.weight for word in words] == sorted((word.weight for word in words), reverse=True)


def test_one_word_finds_however_common() -> None:
    assert [word.finds for word in weigh_words(opening(90_000, 80_000))] == [True, False]
    assert weigh_words(opening()) == []


# --- fusion -----------------------------------------------------------------------------------------------------------
def test_both_arms_count_and_more_is_better() -> None:
    assert order(candidate(1), candidate(2, words=1.0)) == [2, 1]
    assert order(candidate(1), candidate(2, vector=0.5)) == [2, 1]
    both = [
        candidate(1, words=2.0, vector=0.0),
        candidate(2, words=0.0, vector=0.5),
        candidate(3, words=1.5, vector=0.4),
    ]
    assert order(*both) == [3, 1, 2]


def test_the_scale_of_an_arm_does_not_matter_but_its_weight_does() -> None:
    found = [
        candidate(1, words=3.0, vector=0.1),
        candidate(2, words=2.0, vector=0.9),
        candidate(3, words=0.0, vector=0.0),
    ]
    times = [candidate(one.id, words=1_000 * one.words, vector=one.vector) for one in found]
    assert order(*found) == order(*times) == [2, 1, 3]
    assert order(*found, weight=0.1) == [1, 2, 3]
    assert vector_weight("hashing-384") < vector_weight("all-MiniLM-L6-v2") == 1.0


def test_a_memory_without_a_vector_counts_as_the_least_similar_one() -> None:
    found = [candidate(1, vector=0.3), candidate(2, vector=None, words=5.0), candidate(3, vector=0.2)]
    assert order(*found) == [2, 1, 3]
    assert order(candidate(1, vector=None), candidate(2, vector=None, words=1.0)) == [2, 1]


def test_what_does_not_fit_supports_but_is_not_returned() -> None:
    asked = candidate(1, session_id=7, seq=1, words=5.0, fits=False)
    answer, other = candidate(2, session_id=7, seq=2), candidate(3, session_id=7, seq=4)
    assert order(asked, other, answer) == [2, 3]
    assert order(asked) == []
    assert order() == []


def test_neighbours_in_the_same_session_support_each_other() -> None:
    hit = candidate(1, session_id=7, seq=5, words=4.0)
    after, before = candidate(2, session_id=7, seq=6), candidate(3, session_id=7, seq=4)
    far, elsewhere = candidate(4, session_id=7, seq=8), candidate(5, session_id=8, seq=6)
    ranked = {one.id: one for one in rank([hit, after, before, far, elsewhere], weight=0.3, limit=10)}
    assert ranked[2].neighbours == ranked[3].neighbours == pytest.approx(4.0 * NEIGHBOUR_SHARE)
    assert ranked[1].neighbours == ranked[4].neighbours == ranked[5].neighbours == 0
    assert ranked[1].score > ranked[2].score == ranked[3].score > ranked[4].score == ranked[5].score


def test_neighbours_support_by_their_vectors_too() -> None:
    hit = candidate(1, session_id=7, seq=5, vector=0.9)
    assert order(candidate(2), candidate(3, session_id=7, seq=6), hit) == [1, 3, 2]


def test_facts_have_no_neighbours() -> None:
    found = [candidate(1, words=4.0), candidate(2), candidate(3)]
    assert [one.neighbours for one in rank(found, weight=0.3, limit=10)] == [0, 0, 0]


# --- near-ties --------------------------------------------------------------------------------------------------------
def test_recency_and_confidence_break_ties_and_nothing_more() -> None:
    older = candidate(1, occurred_at=NOON - timedelta(days=30))
    assert order(older, candidate(2)) == [2, 1]
    assert order(candidate(1, confidence=0.7), candidate(2, confidence=0.9)) == [2, 1]
    sure = candidate(1, words=1.0, confidence=1.0)
    better = candidate(2, words=1.2, confidence=0.7, occurred_at=NOON - timedelta(days=300))
    assert order(sure, better, *(candidate(n) for n in range(3, 9)))[:2] == [2, 1]


def test_confidence_fades_with_the_days_since_it_was_confirmed() -> None:
    assert decayed(0.9, 0) == 0.9
    assert decayed(0.9, 10 * 86_400) == pytest.approx(0.8)
    assert decayed(0.9, 1e9) == 0
    assert decayed(0.9, -5) == 0.9
    stale = candidate(1, validated_at=NOON - timedelta(days=40))
    assert order(stale, candidate(2)) == [2, 1]


def test_what_is_alike_is_ordered_by_id_and_the_limit_is_kept() -> None:
    assert order(candidate(3), candidate(1), candidate(2)) == [1, 2, 3]
    assert order(candidate(3), candidate(1), candidate(2), limit=2) == [1, 2]


def test_an_explanation_names_the_arms_that_speak_for_a_memory() -> None:
    said = explain(Ranked(id=1, score=2.0, words=3.14159, vector=0.5, neighbours=0.0))
    assert said == {"words": 3.1416, "vector": 0.5}
    assert explain(Ranked(id=1, score=0.0, words=0.0, vector=None, neighbours=1.0)) == {"neighbours": 1.0}
