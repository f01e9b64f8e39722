"""Search: words and vectors, fused. Reads only; never calls a model.

Lexical scores are BM25 (k1 1.2, b 0.75), because they must know how rare a word is, which ``ts_rank`` does not; a
message is supported by a quarter of its neighbours' scores; and the two arms are fused by the sum of their standardised
scores. In a study on LoCoMo (evidence recall@10) that beat reciprocal rank fusion 0.655 to 0.574, and neighbours
added 0.04.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage import embeddings, memories
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.memories import Filter, Row
from nexus_tasks.text import STOP_WORDS, content_words, words
from nexus_tasks.types import Recall, Recalls

K1, B = 1.2, 0.75
NEIGHBOUR_SHARE = 0.25
CANDIDATES = 200  # per arm, or as many as are asked for
MOST_WORDS = 32
VECTOR_WEIGHT = 0.3  # hashed n-grams find near wordings; words say more
CONFIDENCE_WEIGHT, RECENCY_WEIGHT = 0.05, 0.02  # they only break near-ties
DECAY_PER_DAY = 0.01


def search(tx: Transaction, embedder: Embedder, wanted: Filter, query: str, limit: int) -> Recalls:
    """The memories that best answer ``query``, best first."""
    terms = query_words(query)
    candidates = max(CANDIDATES, limit)
    rows: dict[int, Row] = {}
    lexical: dict[int, float] = {}
    if terms:
        found = memories.by_words(tx, wanted, terms, candidates)
        rows |= {row.memory.id: row for row in found}
        lexical = _bm25(tx, wanted.namespace_id, terms, found)
    near = memories.by_vector(tx, wanted, embedder.name, embedder.embed([query])[0], candidates)
    rows |= {row.memory.id: row for row, _ in near}
    vector = {row.memory.id: similarity for row, similarity in near}
    lexical = _supported(tx, rows, lexical)
    scores = _fused(rows, lexical, vector)
    best = sorted(rows, key=lambda memory_id: (-scores[memory_id], memory_id))[:limit]
    evidence = memories.evidence(tx, best)
    results = Recalls(
        Recall(
            id=memory_id,
            external_id=rows[memory_id].memory.external_id,
            level=rows[memory_id].memory.level,  # type: ignore[arg-type]
            content=rows[memory_id].memory.content,
            score=round(scores[memory_id], 6),
            why={
                arm: round(found[memory_id], 4)
                for arm, found in (("words", lexical), ("vector", vector))
                if memory_id in found
            },
            confidence=round(effective_confidence(rows[memory_id]), 4),
            occurred_at=rows[memory_id].memory.occurred_at,
            session_key=rows[memory_id].session_key,
            observer=rows[memory_id].observer,
            subject=rows[memory_id].subject or rows[memory_id].memory.author,
            evidence=evidence.get(memory_id, ()),
        )
        for memory_id in best
    )
    results.missing_embeddings = embeddings.missing(tx, wanted.namespace_id, embedder.name)
    return results


def query_words(query: str) -> list[str]:
    """The words of a query that say something, without repeats, at most 32."""
    return list(dict.fromkeys(word for word in words(query) if word not in STOP_WORDS))[:MOST_WORDS]


def effective_confidence(row: Row) -> float:
    """Confidence less 0.01 per day since the memory was stored or last validated, at least 0. Only orders."""
    since = row.memory.last_validated_at or row.memory.created_at
    days = max((datetime.now(UTC) - since).total_seconds() / 86_400, 0.0)
    return max(row.memory.confidence - DECAY_PER_DAY * days, 0.0)


def _bm25(tx: Transaction, namespace_id: int, terms: Sequence[str], rows: Sequence[Row]) -> dict[int, float]:
    total, mean_tokens, having = memories.frequencies(tx, namespace_id, terms)
    rarity = {
        stem: math.log(1 + (total - having[term] + 0.5) / (having[term] + 0.5))
        for term in terms
        for stem in content_words(term)
    }
    scores = {}
    for row in rows:
        who = row.memory.author or row.subject or ""
        counts = Counter(content_words(f"{who} {row.memory.content}"))
        length = 1 - B + B * row.memory.tokens / max(mean_tokens, 1.0)
        scores[row.memory.id] = sum(
            idf * counts[stem] * (K1 + 1) / (counts[stem] + K1 * length) for stem, idf in rarity.items() if counts[stem]
        )
    return scores


def _supported(tx: Transaction, rows: Mapping[int, Row], scores: Mapping[int, float]) -> dict[int, float]:
    """Scores with a quarter of those of the turns before and after added."""
    supported = dict(scores)
    for before, after in memories.neighbours(tx, list(rows)):
        supported[before] = supported.get(before, 0.0) + NEIGHBOUR_SHARE * scores.get(after, 0.0)
        supported[after] = supported.get(after, 0.0) + NEIGHBOUR_SHARE * scores.get(before, 0.0)
    return supported


def _fused(rows: Mapping[int, Row], lexical: Mapping[int, float], vector: Mapping[int, float]) -> dict[int, float]:
    by_words, by_vector = _standardised(rows, lexical), _standardised(rows, vector)
    newest = max((row.memory.occurred_at for row in rows.values()), default=datetime.now(UTC))
    return {
        memory_id: by_words[memory_id]
        + VECTOR_WEIGHT * by_vector[memory_id]
        + CONFIDENCE_WEIGHT * row.memory.confidence
        + RECENCY_WEIGHT / (1 + (newest - row.memory.occurred_at).total_seconds() / 86_400)
        for memory_id, row in rows.items()
    }


def _standardised(rows: Mapping[int, Row], scores: Mapping[int, float]) -> dict[int, float]:
    """Scores less their mean, over their deviation; a memory the arm did not find has its lowest score."""
    lowest = min(scores.values(), default=0.0)
    values = [scores.get(memory_id, lowest) for memory_id in rows]
    if len(values) < 2 or (deviation := statistics.pstdev(values)) == 0:
        return dict.fromkeys(rows, 0.0)
    mean = statistics.fmean(values)
    return {memory_id: (scores.get(memory_id, lowest) - mean) / deviation for memory_id in rows}
