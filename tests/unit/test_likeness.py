"""Sessions that are like the sessions which answer a question best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from nexus_tasks.cognition.retrieval.fusion import rank
from nexus_tasks.cognition.retrieval.likeness import MOST_COMPARED, DigestVectors, likeness
from nexus_tasks.embeddings.base import Vectors
from tests.unit.test_ranking import candidate

TRAVEL, MONEY, SPORT = np.eye(3, dtype=np.float32)
COMMON = np.full(3, 0.5, np.float32)  # what the digests of all sessions have in common
DIGESTS = {1: TRAVEL + COMMON, 2: TRAVEL + COMMON, 3: MONEY + COMMON, 4: SPORT + COMMON}


def known(digests: Mapping[int, Vectors], asked: list[Sequence[int]] | None = None) -> DigestVectors:
    """A function that reads digests, and notes for which sessions it was called."""

    def read(sessions: Sequence[int]) -> dict[int, Vectors]:
        if asked is not None:
            asked.append(sessions)
        return {session: digests[session] for session in sessions if session in digests}

    return read


def test_a_session_of_the_same_matter_is_like_the_best_one() -> None:
    found = likeness({1: 3.0, 2: 0.0, 3: 0.0, 4: 0.0}, known(DIGESTS))
    assert found[2] > 0.5
    assert max(found[3], found[4]) < 0
    assert found[1] == pytest.approx(found[2], abs=0.1), "its likeness to itself would decide"


def test_sessions_without_a_digest_are_left_out_and_two_digests_say_nothing() -> None:
    scores = {1: 3.0, 2: 0.0, 3: 0.0, 4: 0.0, 9: 5.0}
    assert set(likeness(scores, known(DIGESTS))) == {1, 2, 3, 4}
    assert likeness(scores, known({1: TRAVEL, 3: MONEY})) == {}
    assert likeness({}, known(DIGESTS)) == {}


def test_digests_that_are_all_the_same_decide_nothing() -> None:
    found = likeness({n: float(n) for n in range(5)}, known(dict.fromkeys(range(5), COMMON)))
    assert set(found.values()) == {0.0}


def test_only_the_best_sessions_are_read() -> None:
    asked: list[Sequence[int]] = []
    likeness({n: float(-n) for n in range(10 * MOST_COMPARED)}, known(DIGESTS, asked))
    assert asked == [list(range(MOST_COMPARED))]


def test_a_message_without_the_questions_words_comes_before_others_when_its_session_is_of_the_matter() -> None:
    """The digest of session 2 is like that of session 1, which has the words. Its fact and its digest gain too."""
    hit = candidate(1, session_id=1, seq=1, words=9.0)
    others = [candidate(10 * session, session_id=session, seq=1) for session in (2, 3, 4)]
    fact, digest = candidate(21, level="explicit", sources=(20,)), candidate(22, level="summary_long", session_id=2)
    plain = candidate(31, level="explicit", sources=(30,))
    found = [hit, *others, fact, digest, plain]
    without = {one.id: one.score for one in rank(found, weight=0.2)}
    gained = {one.id: one.score - without[one.id] for one in rank(found, weight=0.2, digest_vectors=known(DIGESTS))}
    assert gained[20] == gained[21] == gained[22] > 1
    assert gained[30] == gained[31] < 0
