"""Rank the candidates of a search by one fused score of words, vectors, authors, sessions, confidence and recency.

    score = standardised(words) + weight · standardised(vectors)
            + 1.5 if the question names the author or subject
            + 1 if the memory is of the time that the question names
            + 0.4 · the session's best + 0.05 · decayed confidence + 0.3 · exp(−age in days / 30)

Here standardised(x) = (x − mean) / standard deviation, over all candidates that pass the filter. ``weight`` is 0.2 for
hashed vectors (the vectors of the built-in embedder) and 0.8 for other vectors.

- **Neighbours.** Before the standardisation, a message gets a share of the scores of the turns around it: 0.5 of the
  turns next to it, and 0.4 · exp(−words between / 15) of the turns up to five turns away. The reason: an answer often
  shares no word with the question, but the turn next to the answer does.
- **Sources.** A fact gets half of the greatest score of the messages that it was derived from, neighbours included.
- **The session's best** is the mean of the two greatest scores in the session of a message, without the neighbours'
  share and counted from the least score. A fact has the sessions of its sources.

Example: three candidates have the BM25 scores 6, 3 and 0 (mean 3, deviation 2.45) and the cosines 0.2, 0.5 and 0.2
(mean 0.3, deviation 0.14). The first candidate has standardised(words) 1.22 and standardised(vectors) −0.71. With
hashed vectors (weight 0.2), a decayed confidence of 0.9 and an age of 0 days, the first candidate's score is
1.22 − 0.2 · 0.71 + 0.05 · 0.9 + 0.3 = 1.42, plus what its author and its session give.

The numbers are chosen on the development parts of LoCoMo and RealMem, two benchmarks of long conversations (see
``python -m benchmarks.quality``). Recall@10 of messages on LoCoMo, and the share of the right sessions among the first
ten on RealMem, with hashed vectors: 0.665 and 0.687 as in the first release; 0.701 and 0.687 with authors; 0.733 and
0.686 with words between; 0.748 and 0.701 with
the session's best; 0.757 and 0.699 with the time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from nexus_tasks.event_time import Span
from nexus_tasks.storage.searching.candidates import Candidate

# The shares of a neighbouring turn's score: of the turns next to a message, and of turns further away.
NEXT_SHARE, NEAR_SHARE = 0.5, 0.4
WORDS_APART = 15.0  # after so many words between two turns, the share falls to 1/e
TURNS_APART = 5  # no share beyond so many turns
WORDS_PER_TOKEN = 0.75  # words are counted by the estimated tokens (characters / 4)
SOURCE_SHARE = 0.5  # the share of its sources' score that a fact gets
NAMED_BONUS, TIME_BONUS = 1.5, 1.0  # in standard deviations
SESSION_SHARE, SESSION_BEST = 0.4, 2
# The weights of vectors beside words. Hashed vectors know little that words do not know.
HASHING_WEIGHT, MODEL_WEIGHT = 0.2, 0.8
CONFIDENCE_WEIGHT = 0.05  # chosen by hand, not measured: it decides between almost equal scores
RECENCY_WEIGHT, RECENCY_DAYS = 0.3, 30.0
DECAY_PER_DAY = 0.01  # the confidence that a memory loses per day (chosen by hand, not measured)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its fused score and three parts of the score."""

    id: int
    score: float
    words: float  # BM25
    vector: float | None  # the cosine similarity, or ``None`` for a memory without a vector
    neighbours: float  # the share of other messages' BM25 scores: of a message's neighbours, or of a fact's sources
    named: bool = False  # whether the question names its author or subject
    others: tuple[int, ...] = ()  # the memories that say the same and are shown by this hit (see ``collapse.py``)


def vector_weight(embedder: str) -> float:
    """The weight of the vectors' score: 0.2 for the built-in embedder, and 0.8 for any other embedder.

    The words' score always has the weight 1.
    """
    return HASHING_WEIGHT if embedder.startswith("hashing") else MODEL_WEIGHT


def rank(
    found: Sequence[Candidate],
    *,
    weight: float,
    limit: int | None = None,
    named: Collection[str] = (),
    asked_time: Span | None = None,
) -> list[Ranked]:
    """The best ``limit`` candidates that pass the filter, best first. The module's docstring has the formula.

    Args:
        found: the candidates, together with the neighbouring turns of each candidate that is a message, and the sources
            of each candidate that is a fact.
        weight: the weight of the vectors' standardised score. The words' standardised score has the weight 1.
        named: the authors and subjects that the question names.
        asked_time: the time that the question names.
    """
    fits = [one for one in found if one.fits]
    if not fits:
        return []
    words = {one.id: one.words for one in found}
    vectors = _known(found)
    shares = _shares(found)
    near = _supported(found, words, shares)
    near_vectors = _supported(found, vectors, shares)
    by_words = _standardised([one.words + near[one.id] for one in fits])
    by_vector = _standardised([vectors[one.id] + near_vectors[one.id] for one in fits])
    sessions = _sessions_best(found, words, vectors, weight)
    # Ages are counted from the newest candidate, not from the clock. So the same question always gives the same order.
    newest = max(one.occurred_at for one in fits)
    latest = max(one.validated_at for one in fits)
    ranked = [
        Ranked(
            id=one.id,
            score=said
            + weight * meant
            + NAMED_BONUS * (one.author in named)
            + TIME_BONUS * (asked_time is not None and _is_of(one, asked_time))
            + SESSION_SHARE * sessions[one.id]
            + CONFIDENCE_WEIGHT * decayed(one.confidence, (latest - one.validated_at).total_seconds())
            + RECENCY_WEIGHT * math.exp(-(newest - one.occurred_at).total_seconds() / 86_400 / RECENCY_DAYS),
            words=one.words,
            vector=one.vector,
            neighbours=near[one.id],
            named=one.author in named,
        )
        for one, said, meant in zip(fits, by_words, by_vector, strict=True)
    ]
    ranked.sort(key=lambda one: (-one.score, one.id))
    return ranked[:limit]


def _is_of(one: Candidate, asked: Span) -> bool:
    """Whether a memory was said in a time, or speaks of an event that has a part in this time."""
    if asked.begin <= one.occurred_at < asked.end:
        return True
    begin, end = one.event_from, one.event_to
    return begin is not None and end is not None and begin < asked.end and asked.begin < end


def decayed(confidence: float, seconds: float) -> float:
    """The confidence after a decay of 0.01 per day: max(confidence − 0.01 · days, 0). The result is never stored.

    Example: a confidence of 0.9 decays to 0.6 after 30 days, and to 0 after 90 days.

    Args:
        confidence: the stored confidence, 0 to 1.
        seconds: seconds since the memory was stored or last validated.
    """
    return max(confidence - DECAY_PER_DAY * max(seconds, 0.0) / 86_400, 0.0)


def _shares(found: Sequence[Candidate]) -> dict[int, list[tuple[int, float]]]:
    """Map each message to its neighbours up to five turns away, as pairs of an id and the share of its score."""
    said_in: dict[int | None, dict[int, Candidate]] = defaultdict(dict)
    for one in found:
        if one.seq is not None:
            said_in[one.session_id][one.seq] = one
    turns = [one for said in said_in.values() for one in said.values()]
    usual = math.fsum(one.tokens for one in turns) / max(len(turns), 1)
    shares: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for said in said_in.values():
        order = sorted(said)
        for place, seq in enumerate(order):
            one, known = said[seq], 0  # tokens of the candidates between the two turns
            for then, later in enumerate(order[place + 1 : place + 1 + TURNS_APART]):
                if later - seq > TURNS_APART:
                    break
                other = said[later]
                between = known + usual * (later - seq - 1 - then)  # other turns count as of usual length
                far = NEAR_SHARE * math.exp(-between * WORDS_PER_TOKEN / WORDS_APART)
                share = NEXT_SHARE if later == seq + 1 else far
                shares[one.id].append((other.id, share))
                shares[other.id].append((one.id, share))
                known += other.tokens
    return shares


def _supported(
    found: Sequence[Candidate], scores: Mapping[int, float], shares: Mapping[int, Sequence[tuple[int, float]]]
) -> dict[int, float]:
    """What each candidate gets from other messages: a message from its neighbours, and a fact from its sources."""
    near = {one.id: sum([share * scores[i] for i, share in shares.get(one.id, ())]) for one in found}
    for one in found:
        if one.sources:
            said = [scores[i] + near[i] for i in one.sources if i in scores]
            near[one.id] = SOURCE_SHARE * max(said, default=0.0)
    return near


def _sessions_best(
    found: Sequence[Candidate], words: Mapping[int, float], vectors: Mapping[int, float], weight: float
) -> dict[int, float]:
    """The mean of the two greatest scores among the messages of a candidate's session, counted from the least score."""
    by_words = _standardised([words[one.id] for one in found])
    by_vector = _standardised([vectors[one.id] for one in found])
    scores = [said + weight * meant for said, meant in zip(by_words, by_vector, strict=True)]
    least = min(scores)
    said_in: dict[int, list[float]] = defaultdict(list)
    for one, score in zip(found, scores, strict=True):
        if one.seq is not None and one.session_id is not None:
            said_in[one.session_id].append(score - least)
    best = {session: sum(nlargest(SESSION_BEST, some)) / SESSION_BEST for session, some in said_in.items()}
    of_message = {one.id: best[one.session_id] for one in found if one.seq is not None and one.session_id is not None}
    return of_message | {
        one.id: max((of_message[i] for i in one.sources if i in of_message), default=0.0)
        for one in found
        if one.id not in of_message
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
