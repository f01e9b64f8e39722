"""How candidates become one order: inverse document frequency, which words find, fusion, neighbours, near-ties."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus_tasks.cognition.retrieval.bm25_word_weights import (
    LONG,
    LONG_LESS,
    LONG_PART,
    MOST_POSTINGS,
    inverse_document_frequency,
    rarity_of_all,
    weigh_words,
)
from nexus_tasks.cognition.retrieval.collapse import collapse
from nexus_tasks.cognition.retrieval.fusion import (
    MODEL_WEIGHT,
    NEAR_SHARE,
    NEXT_SHARE,
    SOURCE_SHARE,
    Ranked,
    decayed,
    rank,
    vector_weight,
)
from nexus_tasks.cognition.retrieval.search import explain
from nexus_tasks.event_time import Span
from nexus_tasks.storage.searching.candidates import Candidate
from nexus_tasks.storage.searching.query_stats import QueryStats, Word, possible_names

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def opening(*memories: int, of: int = 100_000) -> QueryStats:
    """A question whose words (with keys 1, 2, …) are in so many memories each."""
    words = tuple(Word(key=key, memories=n) for key, n in enumerate(memories, 1))
    return QueryStats(words=words, memories=of, mean_length=10.0, vectors=0, indexed=False, narrow=False)


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
    known = defaults | fields
    times = {name: value.timestamp() for name, value in known.items() if isinstance(value, datetime)}
    return Candidate(id=number, **(known | times))


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


def test_the_rare_words_of_a_long_question_weigh_more_and_those_of_a_short_one_do_not() -> None:
    """A long question is a message of a conversation, and most of its words are common."""
    short, long = (weigh_words(opening(1, *[20_000] * common)) for common in (LONG - 1, LONG))
    assert [word.weight for word in short] == [word.rarity for word in short]
    assert [word.rarity for word in long][: len(short)] == [word.rarity for word in short]
    assert [word.weight for word in long] == [max(word.rarity - LONG_LESS, 0.0) for word in long]
    assert long[0].weight > 0 == long[-1].weight
    assert rarity_of_all(opening(1)) == pytest.approx(short[0].rarity), "what a memory covers is measured by rarity"


def test_among_few_memories_a_third_of_the_greatest_rarity_is_subtracted() -> None:
    """Otherwise all words of a long question would weigh nothing in a new namespace."""
    words = weigh_words(opening(1, *[3] * LONG, of=5))
    assert words[0].rarity < LONG_LESS
    assert words[0].weight == pytest.approx((1 - LONG_PART) * words[0].rarity)


def test_the_rarest_words_find_within_the_bound_and_the_others_only_score() -> None:
    words = weigh_words(opening(MOST_POSTINGS - 100, 100, 1, 50_000))
    assert [(word.key, word.finds) for word in words] == [(3, True), (2, True), (1, False), (4, False)]
    assert [word.weight for word in words] == sorted((word.weight for word in words), reverse=True)


def test_names_of_authors_are_left_out_unless_nothing_else_is_asked() -> None:
    name, other = Word(key=1, memories=9, names=True), Word(key=2, memories=90)
    asked = QueryStats(words=(name, other), memories=1_000, mean_length=10.0, vectors=0, indexed=False, narrow=False)
    assert [word.key for word in weigh_words(asked)] == [2]
    assert [word.key for word in weigh_words(replace(asked, words=(name,)))] == [1]


def test_a_question_may_name_people_as_they_write_themselves_or_in_other_letters() -> None:
    names = possible_names("what did ann lee's sister tell Bo about the USER?")
    assert {"ann", "Ann", "Ann Lee", "Bo", "user"} <= set(names)
    assert "what" not in names
    assert len(possible_names("name " * 10_000)) < 200


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
    assert vector_weight("hashing-384") < vector_weight("all-MiniLM-L6-v2") == MODEL_WEIGHT


def test_a_memory_without_a_vector_counts_as_the_least_similar_one() -> None:
    found = [candidate(1, vector=0.3), candidate(2, vector=None, words=5.0), candidate(3, vector=0.2)]
    assert order(*found, weight=0.9) == [2, 1, 3]
    assert order(candidate(1, vector=None), candidate(2, vector=None, words=1.0)) == [2, 1]


def test_what_does_not_fit_supports_but_is_not_returned() -> None:
    asked = candidate(1, session_id=7, seq=1, words=5.0, fits=False)
    answer, other = candidate(2, session_id=7, seq=2), candidate(3, session_id=7, seq=4)
    assert order(asked, other, answer) == [2, 3]
    assert order(asked) == []
    assert order() == []


def test_neighbours_in_the_same_session_support_each_other() -> None:
    hit = candidate(1, session_id=7, seq=5, words=4.0)
    after, before = candidate(2, session_id=7, seq=6, tokens=20), candidate(3, session_id=7, seq=4)
    near, elsewhere = candidate(4, session_id=7, seq=7), candidate(5, session_id=8, seq=6)
    far = candidate(6, session_id=7, seq=11)
    ranked = {one.id: one for one in rank([hit, after, before, near, elsewhere, far], weight=0.3)}
    assert ranked[2].neighbours == ranked[3].neighbours == pytest.approx(4.0 * NEXT_SHARE)
    # 20 tokens are 15 words, after which the share falls to 1/e.
    assert ranked[4].neighbours == pytest.approx(4.0 * NEAR_SHARE / math.e)
    assert ranked[1].neighbours == ranked[5].neighbours == ranked[6].neighbours == 0
    assert ranked[1].score > ranked[2].score == ranked[3].score > ranked[4].score > ranked[6].score > ranked[5].score


def test_the_more_words_stand_between_two_turns_the_less_they_support_each_other() -> None:
    def support(tokens: int) -> float:
        turns = [candidate(n, session_id=7, seq=n, tokens=tokens, words=4.0 * (n == 1)) for n in (1, 2, 3)]
        return next(one.neighbours for one in rank(turns, weight=0.3) if one.id == 3)

    assert support(1) > support(20) > support(200) > 0


def test_the_named_author_is_found_first() -> None:
    found = [candidate(1, words=1.0, author="bo"), candidate(2, words=0.9, author="ann"), candidate(3)]
    assert next(one.id for one in rank(found, weight=0.3, named=["ann"])) == 2
    assert next(one.id for one in rank(found, weight=0.3)) == 1


def test_a_memory_of_the_time_that_the_question_names_is_found_first() -> None:
    june = Span(datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC))
    later, before = NOON + timedelta(days=60), NOON - timedelta(days=60)
    found = [
        candidate(1, words=1.0, occurred_at=later),
        candidate(2, words=0.9),
        candidate(3, words=0.9, occurred_at=later, event_from=NOON, event_to=NOON + timedelta(days=1)),
        candidate(4, occurred_at=before),
        candidate(5, occurred_at=later, event_from=before, event_to=june.begin),
    ]
    ordered = [one.id for one in rank(found, weight=0.3, asked_time=june)]
    assert set(ordered[:2]) == {2, 3}
    assert next(one.id for one in rank(found, weight=0.3)) == 1


def test_the_best_of_its_session_lifts_a_message() -> None:
    lone = [candidate(n, session_id=n, seq=1, words=1.0) for n in (1, 2, 3)]
    hit = candidate(4, session_id=9, seq=1, words=6.0)
    far = candidate(5, session_id=9, seq=50, words=1.0)
    assert order(*lone, hit, far)[:2] == [4, 5]


def test_a_session_that_has_more_of_the_questions_words_lifts_its_messages() -> None:
    """Two messages that say one word twice tell less of the question than two that say two words."""
    same = [candidate(n, session_id=8, seq=50 * n, words=3.0, has=0b01) for n in (1, 2)]
    more = [candidate(n, session_id=9, seq=50 * n, words=3.0, has=has) for n, has in ((3, 0b01), (4, 0b10))]
    fact = candidate(5, level="explicit", sources=(4,))
    found = rank([*same, *more, fact], weight=0.3, word_weights=[2.0, 2.0])
    assert [one.id for one in found] == [3, 4, 1, 2, 5]
    alone = next(one.score for one in rank([*same, fact], weight=0.3, word_weights=[2.0, 2.0]) if one.id == 5)
    assert next(one.score for one in found if one.id == 5) > alone
    assert [one.id for one in rank([*same, *more], weight=0.3)] == [1, 2, 3, 4]


def test_a_fact_has_the_score_of_its_messages_and_their_neighbours() -> None:
    asked, answer = candidate(1, session_id=7, seq=1, words=4.0), candidate(2, session_id=7, seq=2)
    fact, other = candidate(3, level="explicit", sources=(2,)), candidate(4, level="explicit", sources=(9,))
    ranked = {one.id: one for one in rank([asked, answer, fact, other], weight=0.3)}
    assert ranked[3].neighbours == pytest.approx(4.0 * NEXT_SHARE * SOURCE_SHARE)
    assert ranked[4].neighbours == 0
    assert ranked[3].score > ranked[4].score


# --- repeats ----------------------------------------------------------------------------------------------------------
def collapsed(*found: Candidate, limit: int = 10) -> list[tuple[int, tuple[int, ...]]]:
    """Each hit with the others that it shows, for candidates that are given best first."""
    ranked = [Ranked(id=one.id, score=-float(n), words=0, vector=None, neighbours=0) for n, one in enumerate(found)]
    return [(one.id, one.others) for one in collapse(ranked, found, limit)]


def test_a_fact_and_its_only_message_are_one_hit() -> None:
    turn, other = candidate(1, session_id=7, seq=1), candidate(2, session_id=7, seq=2)
    fact = candidate(3, level="explicit", sources=(1,), content_key="k")
    both = candidate(4, level="explicit", sources=(1, 2), content_key="l")
    assert collapsed(fact, other, turn, both) == [(3, (1,)), (2, ()), (4, ())]
    assert collapsed(fact, other) == [(3, ()), (2, ())]  # the message does not pass the filter


def test_a_message_stands_for_several_facts_of_it() -> None:
    turn = candidate(1, session_id=7, seq=1)
    facts = [candidate(n, level="explicit", sources=(1,), content_key=f"k{n}") for n in (2, 3)]
    assert collapsed(*facts, turn) == [(1, (2, 3))]


def test_the_same_fact_of_two_observers_is_one_hit() -> None:
    facts = [candidate(n, level="explicit", sources=(8, 9), content_key="k", author="ann") for n in (1, 2)]
    about_another = candidate(3, level="explicit", content_key="k", author="bo")
    assert collapsed(*facts, about_another) == [(1, (2,)), (3, ())]


def test_the_two_digests_of_a_session_are_one_hit_and_the_limit_counts_hits() -> None:
    short, long = candidate(1, level="summary_short", session_id=7), candidate(2, level="summary_long", session_id=7)
    other = candidate(3, level="summary_short", session_id=8)
    assert collapsed(short, long, other) == [(1, (2,)), (3, ())]
    assert collapsed(short, long, other, limit=1) == [(1, (2,))]


# --- vectors and near-ties --------------------------------------------------------------------------------------------
def test_neighbours_support_by_their_vectors_too() -> None:
    hit = candidate(1, session_id=7, seq=5, vector=0.9)
    assert order(candidate(2), candidate(3, session_id=7, seq=6), hit) == [1, 3, 2]


def test_facts_have_no_neighbours() -> None:
    found = [candidate(1, words=4.0), candidate(2), candidate(3)]
    assert [one.neighbours for one in rank(found, weight=0.3, limit=10)] == [0, 0, 0]


def test_recency_and_confidence_decide_only_between_near_ties() -> None:
    older = candidate(1, occurred_at=NOON - timedelta(days=30))
    assert order(older, candidate(2)) == [2, 1]
    assert order(candidate(1, confidence=0.7), candidate(2, confidence=0.9)) == [2, 1]
    sure = candidate(1, words=1.0, confidence=1.0)
    better = candidate(2, words=1.3, confidence=0.7, occurred_at=NOON - timedelta(days=300))
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
