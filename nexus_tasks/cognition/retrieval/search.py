"""Search: words and vectors, fused. Reads only; never calls a model."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import numpy as np

from nexus_tasks.cognition.retrieval.fusion import Ranked, decayed, rank, vector_weight
from nexus_tasks.cognition.retrieval.word_weights import weighed
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.errors import ConfigurationError, JobError
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.candidates import find_candidates
from nexus_tasks.storage.searching.hits import Hit, read_hits
from nexus_tasks.storage.searching.query_stats import MOST_UNINDEXED, read_query_stats
from nexus_tasks.storage.searching.scope import Filter, build_scope
from nexus_tasks.types import Recall, Recalls, clean_text

log = logging.getLogger(__name__)

POOL = 100  # candidates per arm, or as many as are asked for; 400 had the same recall
_NO_MODEL, _NOWHERE = "none", np.ones(1, np.float32)  # vectors of a name that none is stored under
LONGEST_QUESTION = 10_000  # characters; what comes after is not read


def search(tx: Transaction, embedder: Embedder, wanted: Filter, query: str, limit: int) -> Recalls:
    """The memories that best answer ``query``, best first, each with its evidence and why it was found."""
    ranked, missing = ranking(tx, embedder, wanted, query, limit)
    read = read_hits(tx, wanted.namespace_id, [one.id for one in ranked])
    results = Recalls(_recall(one, read[one.id]) for one in ranked if one.id in read)
    results.missing_embeddings = missing
    return results


def ranking(tx: Transaction, embedder: Embedder, wanted: Filter, query: str, limit: int) -> tuple[list[Ranked], int]:
    """The ids and scores of the best memories, and how many of the namespace's no vector search could see.

    While the embedder does not answer that is all of them: reads never fail because of it, they go by words.
    """
    question = clean_text(query[:LONGEST_QUESTION])
    within = build_scope(wanted)
    model = embedder.name
    try:
        vector = embedder.embed([question])[0]
    except (JobError, ConfigurationError) as error:
        log.warning("A search goes by words alone: %s", error)
        model, vector = _NO_MODEL, _NOWHERE
    known = read_query_stats(tx, within, question, model)
    found = find_candidates(
        tx,
        within,
        weighed(known),
        mean_length=known.mean_length,
        model=model,
        vector=vector,
        pool=max(POOL, limit),
        way="narrow" if known.narrow else "indexed" if known.vectors > MOST_UNINDEXED else "all",
    )
    return rank(found, weight=vector_weight(embedder.name), limit=limit), known.missing_embeddings


def _recall(ranked: Ranked, hit: Hit) -> Recall:
    age = (datetime.now(UTC) - hit.validated_at).total_seconds()
    return Recall(
        id=hit.id,
        external_id=hit.external_id,
        level=hit.level,
        content=hit.content,
        score=round(ranked.score, 6),
        why=explained(ranked),
        confidence=round(decayed(hit.confidence, age), 4),
        occurred_at=hit.occurred_at,
        session_key=hit.session_key,
        observer=hit.observer,
        subject=hit.subject,
        evidence=hit.evidence,
    )


def explained(ranked: Ranked) -> dict[str, float]:
    """Which arms speak for a memory, with their scores: BM25, the neighbouring turns' share of it, and the cosine."""
    arms = {"words": ranked.words or None, "neighbours": ranked.neighbours or None, "vector": ranked.vector}
    return {arm: round(score, 4) for arm, score in arms.items() if score is not None}
