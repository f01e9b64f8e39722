"""Search memories by words and vectors. A search only reads, and never calls a language model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from unicodedata import category

import numpy as np

from nexus_tasks import limits
from nexus_tasks.cognition.retrieval.bm25_word_weights import rarity_of_all, weigh_words
from nexus_tasks.cognition.retrieval.collapse import collapse
from nexus_tasks.cognition.retrieval.fusion import Ranked, decayed, is_hashed, rank, vector_weight, weights_had
from nexus_tasks.embeddings.base import Embedder, Vectors
from nexus_tasks.errors import ConfigurationError, JobError
from nexus_tasks.event_time import event_time, local
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.candidates import Candidate, VectorScan, WeightedWord, find_candidates
from nexus_tasks.storage.searching.digest_vectors import read_digest_vectors
from nexus_tasks.storage.searching.hits import Hit, read_hits
from nexus_tasks.storage.searching.identifiers import having, identifiers_of
from nexus_tasks.storage.searching.query_stats import QueryStats, read_query_stats
from nexus_tasks.storage.searching.scope import Filter, build_scope
from nexus_tasks.types import Citation, Recall, Recalls, clean_text, standing_named

log = logging.getLogger(__name__)

# A search takes up to this many candidates by words, and up to this many by vectors. When the caller's limit is higher,
# the limit replaces this number. With 400 candidates the recall was the same as with 100.
POOL = 100
# So many are found when the vectors have an index. Among 100,000 memories (``benchmarks.crowd``), recall@10 was 0.459
# with 100 candidates, 0.455 with 80 and 0.446 with 60.
INDEXED_POOL = 80
# Hashed vectors know little that words do not know, so a search takes fewer candidates by them. With 40, 25 and 100 the
# recall was the same within 0.004, on LoCoMo and on RealMem.
HASHED_POOL = 40
# While the embedder does not answer, a search uses this model name and this vector for the question. No stored vector
# has this model name, so the search finds memories by words alone.
_NO_MODEL, _NOWHERE = "none", np.ones(1, np.float32)
# Memories that are looked through for those that say the same: more than a hit usually has.
FOR_EACH_HIT, FOR_EACH_SEARCH = 5, 50
FEW = 500  # in a namespace of fewer memories, one word of the question counts as all of its words
LONGEST_TIME = 1_000  # characters of a question in which a time is looked for
LONGEST_QUESTION = 10_000  # characters; the rest of a longer question is ignored


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The best memories for a question, the best first."""

    best: list[Ranked]
    memories: int  # how many memories the namespace has
    missing_embeddings: int  # how many of them have no vector
    covered: float  # the part of the question's words, by rarity, that one memory has at the most


class EmbeddedQuestion:
    """An embedder that has embedded the question of a search already.

    Make it before the transaction of the search. Otherwise the search would hold a connection to Postgres while it
    waits for the embedder, and searches of a few tenants would hold all connections of a server.
    """

    def __init__(self, embedder: Embedder, query: str) -> None:
        self.name = embedder.name
        self._embedder, self._question = embedder, _question(query)
        self._found: Vectors | JobError | ConfigurationError
        try:
            self._found = embedder.embed([self._question])
        except (JobError, ConfigurationError) as error:
            self._found = error

    def embed(self, texts: Sequence[str]) -> Vectors:
        """As of any embedder. An error for the question comes now."""
        if list(texts) != [self._question]:
            return self._embedder.embed(texts)
        if isinstance(self._found, JobError | ConfigurationError):
            raise self._found
        return self._found


def search(
    tx: Transaction, embedder: Embedder, wanted: Filter, query: str, limit: int, *, collapsed: bool = True
) -> Recalls:
    """The memories that best answer ``query``, best first. Each memory has its evidence and its scores (``why``).

    With ``collapsed``, memories that say the same are one hit, and the others are in the hit's evidence.

    Raises:
        InvalidInput: the texts are too large for an answer.
    """
    found = ranking(tx, embedder, wanted, query, limit, collapsed=collapsed)
    others = [other for one in found.best for other in one.others]
    read = read_hits(tx, wanted.namespace_id, [one.id for one in found.best], others)
    results = Recalls(_recall(one, read) for one in found.best if one.id in read)
    results.missing_embeddings = found.missing_embeddings
    return results


def ranking(
    tx: Transaction,
    embedder: Embedder,
    wanted: Filter,
    query: str,
    limit: int,
    *,
    collapsed: bool = True,
    pool: int | None = None,
) -> Ranking:
    """The ids and scores of the best memories.

    With ``collapsed``, memories that say the same are one result (see ``collapse.py``).
    While the embedder does not answer, the search uses words alone, and every memory counts as one without a vector.

    Args:
        pool: how many candidates to find by words, and how many to find by vectors. It counts only in a namespace
            whose vectors have an index. Elsewhere, and for ``None``, ``limit`` counts. At least :data:`POOL` are
            found, or :data:`INDEXED_POOL`.
            By hashed vectors, :data:`HASHED_POOL` are found when ``pool`` counts. Elsewhere ``limit`` are found, or
            :data:`HASHED_POOL` when that is more.
            Neighbours of messages come in addition.
    """
    question = _question(query)
    within = build_scope(wanted)
    model = embedder.name
    try:
        vector = embedder.embed([question])[0]
    except (JobError, ConfigurationError) as error:
        log.warning("The embedder does not answer, so this search uses words alone: %s", error)
        model, vector = _NO_MODEL, _NOWHERE
    known = read_query_stats(tx, within, question, model)
    if not any(map(_means_something, question)):
        return Ranking(best=[], memories=known.memories, missing_embeddings=known.missing_embeddings, covered=0.0)
    way: VectorScan = "narrow" if known.narrow else "indexed" if known.indexed else "all"
    words = weigh_words(known)
    wide = pool is None or way != "indexed"
    most = max(INDEXED_POOL if way == "indexed" else POOL, limit if wide else pool or 0)
    found = find_candidates(
        tx,
        within,
        words,
        mean_length=known.mean_length,
        model=model,
        vector=vector,
        pool=most,
        nearest=max(HASHED_POOL, limit if wide else 0) if is_hashed(embedder.name) else most,
        way=way,
    )
    ranked = rank(
        found,
        weight=vector_weight(embedder.name),
        word_weights=[word.weight for word in words],
        limit=FOR_EACH_HIT * limit + FOR_EACH_SEARCH if collapsed else limit,
        named=known.named,
        identified=having(tx, [one.id for one in found if one.fits], identifiers_of(question)),
        asked_time=event_time(question[:LONGEST_TIME], wanted.as_of or datetime.now(UTC)),
        # A digest may tell what an observer did not hear.
        digest_vectors=None if wanted.heard_only else partial(read_digest_vectors, tx, within, model),
    )
    best = collapse(ranked, found, limit) if collapsed else ranked
    return Ranking(
        best=best,
        memories=known.memories,
        missing_embeddings=known.missing_embeddings,
        covered=_covered(found, known, words),
    )


def _question(query: str) -> str:
    return clean_text(query[:LONGEST_QUESTION])


def _means_something(character: str) -> bool:
    """Whether it is a letter, a digit or a symbol such as an emoji. The vector of punctuation alone says nothing."""
    return character.isalnum() or (not character.isascii() and category(character).startswith("S"))


def _covered(found: Sequence[Candidate], known: QueryStats, words: Sequence[WeightedWord]) -> float:
    if known.memories < FEW and any(one.words > 0 for one in found):
        return 1.0  # among few memories a word's rarity says little
    had = weights_had([one.has for one in found if one.fits], [word.rarity for word in words])
    return float(had.max(initial=0.0)) / max(rarity_of_all(known), 1e-9)


def _recall(ranked: Ranked, read: Mapping[int, Hit]) -> Recall:
    hit = read[ranked.id]
    age = (datetime.now(UTC) - hit.validated_at).total_seconds()
    known = {one.id for one in hit.evidence}
    repeats = [
        Citation(id=i, external_id=read[i].external_id, role="repeats")
        for i in ranked.others
        if i in read and i not in known
    ]
    evidence = (*hit.evidence, *repeats)
    return Recall(
        id=hit.id,
        external_id=hit.external_id,
        level=hit.level,
        content=hit.content,
        score=round(ranked.score, 6),
        why=explain(ranked) | _standing(hit),
        confidence=round(decayed(hit.confidence, age), 4),
        occurred_at=hit.occurred_at,
        event_from=local(hit.event_from, hit.time_zone),
        event_to=local(hit.event_to, hit.time_zone),
        claimed_at=hit.claimed_at,
        standing=standing_named(hit.standing),
        session_key=hit.session_key,
        observer=hit.observer,
        subject=hit.subject,
        evidence=evidence[: limits.HIT_EVIDENCE],
        more_evidence=hit.edges + len(repeats) - min(len(evidence), limits.HIT_EVIDENCE),
    )


def _standing(hit: Hit) -> dict[str, str]:
    standing = standing_named(hit.standing)
    return {"standing": standing} if standing and hit.level != "raw" else {}


def explain(ranked: Ranked) -> dict[str, float | str]:
    """The scores that ranked a memory: BM25 (``words``), the share of other messages, cosine and likeness."""
    arms = {
        "words": ranked.words or None,
        "neighbours": ranked.neighbours or None,
        "vector": ranked.vector,
        "likeness": ranked.likeness or None,
    }
    return {arm: round(score, 4) for arm, score in arms.items() if score is not None}
