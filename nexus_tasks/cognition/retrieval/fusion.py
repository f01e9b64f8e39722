"""Rank the candidates of a search by one fused score of words, vectors, confidence and recency.

    score = standardised(words) + weight · standardised(vectors) + 0.05 · decayed confidence + 0.02 / (1 + age in days)

Here standardised(x) = (x − mean) / standard deviation, over all candidates that pass the filter. ``weight`` is 0.3 for
hashed vectors (the vectors of the built-in embedder) and 1 for other vectors. A message's neighbours are the turns
directly before and after it. Before the standardisation, 0.4 of the neighbours' scores is added to a message's score
for words and to its score for vectors. The reason: an answer often shares no word with the question, but the turn next
to the answer does.

Example: three candidates have the BM25 scores 6, 3 and 0 (mean 3, deviation 2.45) and the cosines 0.2, 0.5 and 0.2
(mean 0.3, deviation 0.14). The first candidate has standardised(words) 1.22 and standardised(vectors) −0.71. With
hashed vectors (weight 0.3), a decayed confidence of 0.9 and an age of 0 days, the first candidate's score is
1.22 − 0.3 · 0.71 + 0.05 · 0.9 + 0.02 = 1.08.

The evidence recall@10 is the share of an answer's evidence that the ten best results contain. A study measured this
recall on the questions of LoCoMo (a benchmark of long conversations). The sum of standardised scores had 0.655, and
reciprocal rank fusion had 0.574. The neighbours' scores raised the recall of BM25 with stems from 0.603 to 0.645, and
the recall of the sum from 0.655 to 0.70.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nexus_tasks.storage.searching.candidates import Candidate

# The share of a neighbouring turn's score that is added to a message's score. The study used 0.25. With 0.4, the
# benchmark ``python -m benchmarks.retrieval`` measured an evidence recall@10 of 0.665.
NEIGHBOUR_SHARE = 0.4
# The weight of hashed vectors, chosen by hand. In the study, hashed vectors alone had a recall@10 of 0.31, while BM25
# with stems had 0.603.
HASHING_WEIGHT = 0.3
# Standardised scores have a standard deviation of 1, so these small weights only decide between almost equal scores.
# Chosen by hand, not measured.
CONFIDENCE_WEIGHT, RECENCY_WEIGHT = 0.05, 0.02
DECAY_PER_DAY = 0.01  # the confidence that a memory loses per day (chosen by hand, not measured)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its fused score and three parts of the score."""

    id: int
    score: float
    words: float  # BM25
    vector: float | None  # the cosine similarity, or ``None`` for a memory without a vector
    neighbours: float  # the share of the neighbouring turns' BM25 scores


def vector_weight(embedder: str) -> float:
    """The weight of the vectors' score: 0.3 for the built-in embedder, and 1 for any other embedder.

    The words' score always has the weight 1.
    """
    return HASHING_WEIGHT if embedder.startswith("hashing") else 1.0


def rank(found: Sequence[Candidate], *, weight: float, limit: int) -> list[Ranked]:
    """The best ``limit`` candidates that pass the filter, best first. The module's docstring has the formula.

    Args:
        found: the candidates, together with the neighbouring turns of each candidate that is a message.
        weight: the weight of the vectors' standardised score. The words' standardised score has the weight 1.
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
    # Ages are counted from the newest candidate, not from the clock. So the same question always gives the same order.
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
    """The confidence after a decay of 0.01 per day: max(confidence − 0.01 · days, 0). The result is never stored.

    Example: a confidence of 0.9 decays to 0.6 after 30 days, and to 0 after 90 days.

    Args:
        confidence: the stored confidence, 0 to 1.
        seconds: seconds since the memory was stored or last validated.
    """
    return max(confidence - DECAY_PER_DAY * max(seconds, 0.0) / 86_400, 0.0)


def _neighbours(found: Sequence[Candidate]) -> dict[int, list[int]]:
    """Map each candidate to its neighbours: the turns directly before and after it, if they are in ``found``."""
    at = {(one.session_id, one.seq): one.id for one in found if one.seq is not None}
    return {
        one.id: []
        if one.seq is None
        else [at[place] for place in ((one.session_id, one.seq - 1), (one.session_id, one.seq + 1)) if place in at]
        for one in found
    }


def _known(found: Sequence[Candidate]) -> dict[int, float]:
    """Cosine similarities by id. A memory without a vector gets the lowest similarity of all other memories."""
    least = min((one.vector for one in found if one.vector is not None), default=0.0)
    return {one.id: least if one.vector is None else one.vector for one in found}


def _standardised(scores: Sequence[float]) -> list[float]:
    """(score − mean) / standard deviation, for each score. When all scores are equal, each result is 0."""
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - mean) / deviation for score in scores] if deviation > 1e-12 else [0.0] * len(scores)
