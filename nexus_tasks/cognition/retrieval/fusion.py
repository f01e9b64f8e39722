"""Rank the candidates of a search by one fused score of words, vectors, confidence and recency.

    score = standardised(words) + weight · standardised(vectors) + 0.05 · decayed confidence + 0.02 / (1 + age in days)

Here standardised(x) = (x − mean) / standard deviation, over all candidates that pass the filter. Before that, both for
words and for vectors, a message's score is increased by 0.4 of the scores of its neighbours: the turns directly before
and after it. The reason: an answer often shares no word with the question, but the turn beside the answer does.

Example: three candidates have the BM25 scores 6, 3 and 0 (mean 3, deviation 2.45) and the cosines 0.2, 0.5 and 0.2
(mean 0.3, deviation 0.14). The first candidate has standardised(words) 1.22 and standardised(vectors) −0.71. With
hashed vectors (weight 0.3), a decayed confidence of 0.9 and an age of 0 days, its score is
1.22 − 0.3 · 0.71 + 0.05 · 0.9 + 0.02 = 1.08.

In a study on LoCoMo's questions, the sum of standardised scores had an evidence recall@10 of 0.655, and reciprocal rank
fusion had 0.574. Adding the neighbours' scores raised BM25 with stems from 0.603 to 0.645, and the sum from 0.655 to
0.70.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.storage.searching.candidates import Candidate

# Share of a neighbouring turn's score. The study used 0.25. With 0.4, ``python -m benchmarks.retrieval`` measured an
# evidence recall@10 of 0.665.
NEIGHBOUR_SHARE = 0.4
# The weight of hashed vectors, chosen by hand. In the study, hashed vectors alone had a recall@10 of 0.31, and BM25
# with stems had 0.603.
HASHING_WEIGHT = 0.3
# Standardised scores have a standard deviation of 1, so these weights only decide between almost equal scores. Chosen
# by hand, not measured.
CONFIDENCE_WEIGHT, RECENCY_WEIGHT = 0.05, 0.02
DECAY_PER_DAY = 0.01  # confidence that a memory loses per day; chosen by hand, not measured


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its fused score and the parts of the score.

    The parts are BM25, the cosine (``None`` without a vector) and the neighbours' share.
    """

    id: int
    score: float
    words: float
    vector: float | None
    neighbours: float


def vector_weight(embedder: str) -> float:
    """The weight of an embedder's similarity: 1 for a trained model, 0.3 for the built-in embedder. Words weigh 1."""
    return HASHING_WEIGHT if embedder.startswith("hashing") else 1.0


def rank(found: Sequence[Candidate], *, weight: float, limit: int) -> list[Ranked]:
    """The best ``limit`` candidates that pass the filter, best first. See the formula at the top of this module.

    Args:
        found: the candidates, and the neighbours of candidates that are messages.
        weight: the weight of the vectors' standardised similarity; the words' score weighs 1.
    """
    fits = [one for one in found if one.fits]
    if not fits:
        return []
    words = {one.id: one.words for one in found}
    vectors = _known(found)
    near = _neighbours(found)
    support = {one.id: NEIGHBOUR_SHARE * sum(words[i] for i in near[one.id]) for one in fits}
    by_words = _standardised([one.words + support[one.id] for one in fits])
    by_vector = _standardised(
        [vectors[one.id] + NEIGHBOUR_SHARE * sum(vectors[i] for i in near[one.id]) for one in fits]
    )
    # Ages are counted from the newest candidate, not from the clock. So the same question gives the same order.
    newest = max(one.occurred_at for one in fits)
    latest = max(one.validated_at for one in fits)
    ranked = [
        Ranked(
            id=one.id,
            score=said
            + weight * meant
            + CONFIDENCE_WEIGHT * decayed(one.confidence, (latest - one.validated_at).total_seconds())
            + RECENCY_WEIGHT / (1 + (newest - one.occurred_at).total_seconds() / 86_400),
            words=one.words,
            vector=one.vector,
            neighbours=support[one.id],
        )
        for one, said, meant in zip(fits, by_words, by_vector, strict=True)
    ]
    ranked.sort(key=lambda one: (-one.score, one.id))
    return ranked[:limit]


def decayed(confidence: float, seconds: float) -> float:
    """Confidence decayed by age: max(confidence − 0.01 · days, 0). Used for ordering, never written.

    Example: 0.9, last validated 30 days ago, counts as 0.6; after 90 days it counts as 0.

    Args:
        confidence: as stored, 0 to 1.
        seconds: since the memory was stored or last validated.
    """
    return max(confidence - DECAY_PER_DAY * max(seconds, 0.0) / 86_400, 0.0)


def _neighbours(found: Sequence[Candidate]) -> dict[int, list[int]]:
    """For each candidate, the ids of the candidates that are the turns directly before and after it."""
    at = {(one.session_id, one.seq): one.id for one in found if one.seq is not None}
    return {
        one.id: []
        if one.seq is None
        else [at[place] for place in ((one.session_id, one.seq - 1), (one.session_id, one.seq + 1)) if place in at]
        for one in found
    }


def _known(found: Sequence[Candidate]) -> dict[int, float]:
    """Cosine similarities by id. A memory without a vector gets the lowest similarity among the others."""
    least = min((one.vector for one in found if one.vector is not None), default=0.0)
    return {one.id: least if one.vector is None else one.vector for one in found}


def _standardised(scores: Sequence[float]) -> list[float]:
    """(score − mean) / standard deviation; all 0 when the scores are equal."""
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - mean) / deviation for score in scores] if deviation > 1e-12 else [0.0] * len(scores)
