"""Rank the candidates of a search by one fused score of words, vectors, authors, sessions, confidence and recency.

    score = standardised(words) + weight · standardised(vectors)
            + 1.5 if the question names the author or subject
            + 1 if the memory is of the time that the question names
            + 2 if the memory contains a whole identifier of the question
            + 0.4 · the session's best + 0.2 · standardised(the session's words)
            + 0.05 · decayed confidence + 0.5 · exp(−age in days / 30)
            + 3 · the session's likeness

Here standardised(x) = (x − mean) / standard deviation, over all candidates that pass the filter. ``weight`` is 0.2 for
hashed vectors (the vectors of the built-in embedder) and 0.8 for other vectors.

- **Neighbours.** Before the standardisation, a message gets a share of the scores of the turns around it: 0.5 of the
  turns next to it, and 0.4 · exp(−words between / 15) of the turns up to five turns away. The reason: an answer often
  shares no word with the question, but the turn next to the answer does.
- **Sources.** A fact gets half of the greatest score of the messages that it was derived from, neighbours included.
- **The session's best** is the mean of the two greatest scores in the session of a message, without the neighbours'
  share and counted from the least score. A fact has the sessions of its sources.
- **The session's words** are the summed weights of the question's words that the messages of a session have together.
  So two messages that have one word each lift their session more than two messages that have the same word.
- **The session's likeness** to the best sessions, by the vectors of their digests (see ``likeness.py``). It counts for
  messages, facts and digests.

Example: three candidates have the BM25 scores 6, 3 and 0 (mean 3, deviation 2.45) and the cosines 0.2, 0.5 and 0.2
(mean 0.3, deviation 0.14). The first candidate has standardised(words) 1.22 and standardised(vectors) −0.71. With
hashed vectors (weight 0.2), a decayed confidence of 0.9 and an age of 0 days, the first candidate's score is
1.22 − 0.2 · 0.71 + 0.05 · 0.9 + 0.5 = 1.62, plus what its author and its session give.

The numbers are chosen on the development parts of LoCoMo and RealMem, two benchmarks of long conversations (see
``python -m benchmarks.quality``). Recall@10 of messages on LoCoMo, and the share of the right sessions among the first
ten on RealMem, with hashed vectors: 0.665 and 0.687 as in the first release; 0.701 and 0.687 with authors; 0.733 and
0.686 with words between; 0.748 and 0.701 with the session's best; 0.757 and 0.699 with the time. A later release
measured 0.753 and 0.689 with the words of the session, and 0.757 and 0.715 with likeness and a greater weight of
recency (0.3 before). It measures 0.759 and 0.743 when common words of long questions weigh nothing (see
``bm25_word_weights.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nexus_tasks.cognition.retrieval.likeness import DigestVectors, likeness
from nexus_tasks.event_time import Span
from nexus_tasks.storage.searching.candidates import Candidate

Scores: TypeAlias = npt.NDArray[np.float64]  # one for each candidate
Words: TypeAlias = npt.NDArray[np.int64]  # for each candidate, a bit for each word of the question
Places: TypeAlias = npt.NDArray[Any]  # numbers of candidates in the order in which they were found

# The shares of a neighbouring turn's score: of the turns next to a message, and of turns further away.
NEXT_SHARE, NEAR_SHARE = 0.5, 0.4
WORDS_APART = 15.0  # after so many words between two turns, the share falls to 1/e
TURNS_APART = 5  # no share beyond so many turns
WORDS_PER_TOKEN = 0.75  # words are counted by the estimated tokens (characters / 4)
SOURCE_SHARE = 0.5  # the share of its sources' score that a fact gets
NAMED_BONUS, TIME_BONUS, IDENTIFIER_BONUS = 1.5, 1.0, 2.0  # in standard deviations
SESSION_SHARE, SESSION_BEST = 0.4, 2
SESSION_WORDS_SHARE = 0.2
# The weights of vectors beside words. Hashed vectors know little that words do not know.
HASHING_WEIGHT, MODEL_WEIGHT = 0.2, 0.8
CONFIDENCE_WEIGHT = 0.05  # chosen by hand, not measured: it decides between almost equal scores
RECENCY_WEIGHT, RECENCY_DAYS = 0.5, 30.0
LIKENESS_WEIGHT = 3.0
DAY = 86_400  # seconds
DECAY_PER_DAY = 0.01  # the confidence that a memory loses per day (chosen by hand, not measured)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A memory with its fused score and four parts of the score."""

    id: int
    score: float
    words: float  # BM25
    vector: float | None  # the cosine similarity, or ``None`` for a memory without a vector
    neighbours: float  # the share of other messages' BM25 scores: of a message's neighbours, or of a fact's sources
    likeness: float = 0.0  # how much its session is like the best sessions
    named: bool = False  # whether the question names its author or subject
    sessions: tuple[int, ...] = ()  # the ids of its session, or of a fact's sources' sessions
    others: tuple[int, ...] = ()  # the memories that say the same and are shown by this hit (see ``collapse.py``)


def vector_weight(embedder: str) -> float:
    """The weight of the vectors' score: 0.2 for the built-in embedder, and 0.8 for any other embedder.

    The words' score always has the weight 1.
    """
    return HASHING_WEIGHT if is_hashed(embedder) else MODEL_WEIGHT


def is_hashed(embedder: str) -> bool:
    """Whether it is the built-in embedder."""
    return embedder.startswith("hashing")


def rank(
    found: Sequence[Candidate],
    *,
    weight: float,
    word_weights: Sequence[float] = (),
    limit: int | None = None,
    named: Collection[str] = (),
    identified: Collection[int] = (),
    asked_time: Span | None = None,
    digest_vectors: DigestVectors | None = None,
) -> list[Ranked]:
    """The best ``limit`` candidates that pass the filter, best first. The module's docstring has the formula.

    Args:
        found: the candidates, together with the neighbouring turns of each candidate that is a message, and the sources
            of each candidate that is a fact.
        weight: the weight of the vectors' standardised score. The words' standardised score has the weight 1.
        word_weights: the weights of the question's words, in the order of the bits of :attr:`Candidate.has`.
        named: the authors and subjects that the question names.
        identified: the ids of the memories that contain a whole identifier of the question.
        asked_time: the time that the question names.
        digest_vectors: a function of sessions' ids. It returns the vectors of those sessions' digests, as far as they
            have one.
    """
    if not any(one.fits for one in found):
        return []
    columns: Any = Candidate._make(zip(*found, strict=True))
    fits = np.flatnonzero(columns.fits)
    words, vectors = np.array(columns.words), known_cosines(columns.vector)
    turns = _Turns.of(found)
    near, near_vectors = turns.support(words), turns.support(vectors)
    best = turns.sessions_best(standardised(words) + weight * standardised(vectors))
    session_words = turns.sessions_words(np.array(columns.has, np.int64), word_weights)
    times = np.array((columns.confidence, columns.validated_at, columns.occurred_at))
    confidence, validated, occurred = times[:, fits]
    # Ages are counted from the newest candidate, not from the clock. So the same question always gives the same order.
    scores = (
        standardised((words + near)[fits])
        + weight * standardised((vectors + near_vectors)[fits])
        + SESSION_SHARE * best[fits]
        + SESSION_WORDS_SHARE * standardised(session_words[fits])
        + CONFIDENCE_WEIGHT * np.maximum(confidence - DECAY_PER_DAY * (validated.max() - validated) / DAY, 0.0)
        + RECENCY_WEIGHT * np.exp((occurred - occurred.max()) / DAY / RECENCY_DAYS)
    )
    if named:
        scores += NAMED_BONUS * np.array([author in named for author in columns.author])[fits]
    if identified:
        scores += IDENTIFIER_BONUS * np.array([one in identified for one in columns.id])[fits]
    if asked_time is not None:
        begin, end = asked_time.begin.timestamp(), asked_time.end.timestamp()
        scores += TIME_BONUS * np.array([_is_of(one, begin, end) for one in found])[fits]
    sessions = _sessions(found, fits.tolist())
    alike = _likeness(sessions, scores, digest_vectors) if digest_vectors else np.zeros(len(fits))
    scores += LIKENESS_WEIGHT * alike
    # Rounded, because the order of the additions must not decide between memories that are alike.
    order = np.lexsort((np.array(columns.id)[fits], -scores.round(9)))[:limit]
    return [
        Ranked(
            id=one.id,
            score=score,
            words=one.words,
            vector=one.vector,
            neighbours=support,
            likeness=like,
            named=one.author in named,
            sessions=own,
        )
        for one, own, score, support, like in zip(
            [found[i] for i in fits[order]],
            [sessions[i] for i in order],
            scores[order].tolist(),
            near[fits[order]].tolist(),
            alike[order].tolist(),
            strict=True,
        )
    ]


def _sessions(found: Sequence[Candidate], fits: Sequence[int]) -> list[tuple[int, ...]]:
    """The sessions of each fitting candidate: its own, or those of a fact's sources."""
    session_of = {one.id: one.session_id for one in found if one.session_id is not None}
    return [
        tuple({session_of[i]: None for i in (found[place].id, *found[place].sources) if i in session_of})
        for place in fits
    ]


def _likeness(sessions: Sequence[Sequence[int]], scores: Scores, digest_vectors: DigestVectors) -> Scores:
    """The likeness of each fitting candidate's session. A fact has that of the session most like the best ones."""
    of = np.repeat(np.arange(len(sessions)), [len(own) for own in sessions])  # candidates, and a session of each
    ids, session = np.unique([one for own in sessions for one in own], return_inverse=True)
    sums, numbers = _best_of_groups(session, scores[of], len(ids))
    best = sums / numbers
    known = likeness(dict(zip(ids.tolist(), best.tolist(), strict=True)), digest_vectors)
    most = np.full(len(sessions), -np.inf)
    np.maximum.at(most, of, np.array([known.get(one, -np.inf) for one in ids.tolist()])[session])
    return np.where(np.isfinite(most), most, 0.0)


def _best_of_groups(groups: Places, scores: Scores, count: int) -> tuple[Scores, Places]:
    """By group: the sum of its :data:`SESSION_BEST` greatest scores, and how many scores this is the sum of.

    Args:
        groups: for each score the number of its group, 0 to ``count - 1``.
    """
    order = np.lexsort((-scores, groups))
    sizes = np.bincount(groups, minlength=count)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    best = order[rank < SESSION_BEST]
    sums = np.zeros(count)
    np.add.at(sums, groups[best], scores[best])
    return sums, np.minimum(sizes, SESSION_BEST)


def _is_of(one: Candidate, begin: float, end: float) -> bool:
    """Whether a memory was said in a time, or speaks of an event that has a part in this time."""
    if begin <= one.occurred_at < end:
        return True
    event_from, event_to = one.event_from, one.event_to
    return event_from is not None and event_to is not None and event_from < end and begin < event_to


def decayed(confidence: float, seconds: float) -> float:
    """The confidence after a decay of 0.01 per day: max(confidence − 0.01 · days, 0). The result is never stored.

    Example: a confidence of 0.9 decays to 0.6 after 30 days, and to 0 after 90 days.

    Args:
        confidence: the stored confidence, 0 to 1.
        seconds: seconds since the memory was stored or last validated.
    """
    return max(confidence - DECAY_PER_DAY * max(seconds, 0.0) / DAY, 0.0)


@dataclass(frozen=True, kw_only=True)
class _Turns:
    """The candidates as places in arrays: which turns are near each other, and which facts rest on which turns."""

    count: int
    pairs: tuple[Places, Places]  # two turns of a session up to five turns apart, the earlier one first
    shares: Scores  # by pair: the share of its score that each gives the other
    rests: tuple[Places, Places]  # a fact and one of its sources among the candidates
    turns: Places  # the candidates that are messages
    sessions: Places  # by candidate: the number of a message's session

    @classmethod
    def of(cls, found: Sequence[Candidate]) -> _Turns:
        place = {one.id: i for i, one in enumerate(found)}
        rests = [(place[one.id], place[i]) for one in found for i in one.sources if i in place]
        number = {session: i for i, session in enumerate({one.session_id for one in found if one.seq is not None})}
        said = [(number[one.session_id], one.seq, one.tokens, i) for i, one in enumerate(found) if one.seq is not None]
        session, seq, tokens, turns = np.array(sorted(said), np.int64).reshape(-1, 4).T
        earlier, shares = [], []
        before = np.concatenate(([0], np.cumsum(tokens)))  # the tokens of all candidates before each turn
        usual = tokens.mean() if len(tokens) else 0.0
        for apart in range(1, TURNS_APART + 1):
            distance = seq[apart:] - seq[:-apart]
            pairs = np.flatnonzero((session[apart:] == session[:-apart]) & (distance <= TURNS_APART))
            # Turns between the two that are no candidates count as of usual length.
            between = before[pairs + apart] - before[pairs + 1] + usual * (distance[pairs] - apart)
            far = NEAR_SHARE * np.exp(-between * WORDS_PER_TOKEN / WORDS_APART)
            shares.append(np.where(distance[pairs] == 1, NEXT_SHARE, far))
            earlier.append((turns[pairs], turns[pairs + apart]))
        facts, sources = np.array(rests, np.int64).reshape(-1, 2).T
        sessions = np.full(len(found), -1)
        sessions[turns] = session
        return cls(
            count=len(found),
            pairs=(np.concatenate([one for one, _ in earlier]), np.concatenate([one for _, one in earlier])),
            shares=np.concatenate(shares),
            rests=(facts, sources),
            turns=turns,
            sessions=sessions,
        )

    def support(self, scores: Scores) -> Scores:
        """What each candidate gets from other messages: a message from its neighbours, and a fact from its sources."""
        first, second = self.pairs
        near = np.bincount(first, self.shares * scores[second], self.count)
        near += np.bincount(second, self.shares * scores[first], self.count)
        facts, sources = self.rests
        best = np.full(self.count, -np.inf)
        np.maximum.at(best, facts, (scores + near)[sources])
        return np.where(np.isfinite(best), SOURCE_SHARE * best, near)

    def sessions_best(self, scores: Scores) -> Scores:
        """The mean of the two greatest scores among the messages of a candidate's session, from the least score on."""
        above = scores - scores.min()
        sums, _ = _best_of_groups(self.sessions[self.turns], above[self.turns], len(self.turns))
        return self._of_sessions(sums / SESSION_BEST)

    def sessions_words(self, has: Words, weights: Sequence[float]) -> Scores:
        """The weight of all words of the question that the messages of a candidate's session have together."""
        together = np.zeros(len(self.turns), np.int64)  # by session, of which there are at most as many as messages
        np.bitwise_or.at(together, self.sessions[self.turns], has[self.turns])
        return self._of_sessions(weights_had(together, weights))

    def _of_sessions(self, scores: Scores) -> Scores:
        """The score of each candidate's session, and for a fact the greatest one of its sources' sessions."""
        found = np.zeros(self.count)
        found[self.turns] = scores[self.sessions[self.turns]]
        facts, sources = self.rests
        of_facts = np.zeros(self.count)
        np.maximum.at(of_facts, facts, found[sources])
        return np.maximum(found, of_facts)


def weights_had(has: Sequence[int] | Words, weights: Sequence[float]) -> Scores:
    """The sum of the weights of the words whose bits are set, for each element of ``has``."""
    bits = np.array(has, np.int64)[:, None] >> np.arange(len(weights)) & 1
    return np.asarray(bits @ np.array(weights, np.float64), np.float64)


def known_cosines(cosines: Sequence[float | None] | Scores) -> Scores:
    """Cosine similarities. A memory without a vector gets the lowest similarity of all other memories."""
    known = np.array(cosines, np.float64)  # NaN for ``None``
    missing = np.isnan(known)
    known[missing] = known[~missing].min() if not missing.all() else 0.0
    return known


def standardised(scores: Scores) -> Scores:
    """(score − mean) / standard deviation, for each score. When all scores are equal, each result is 0."""
    deviation = scores.std()
    return (scores - scores.mean()) / deviation if deviation > 1e-12 else np.zeros(len(scores))
