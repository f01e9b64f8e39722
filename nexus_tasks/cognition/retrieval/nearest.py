"""Find the nearest facts of a perspective, by words and vectors. A reflection compares a new fact with these facts.

    score = standardised(BM25 of the new fact's words) + weight · standardised(cosine similarity)

This is the first line of the formula in ``fusion.py``, over all active facts of the perspective. Neighbours, sessions
and ages are left out: they say which memory answers a question, not which facts are about the same matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nexus_tasks.cognition.retrieval.bm25_word_weights import inverse_document_frequency
from nexus_tasks.cognition.retrieval.fusion import Scores, known_cosines, standardised, vector_weight
from nexus_tasks.cognition.retrieval.search import ranking
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.storage.searching.candidates import K1, B
from nexus_tasks.storage.searching.few_memories import FewMemories, read_few
from nexus_tasks.storage.searching.near_memories import NearMemories, read_near
from nexus_tasks.storage.searching.query_stats import Word
from nexus_tasks.storage.searching.scope import Filter, build_scope

NEAR = 50  # facts whose vectors are nearest, in a perspective of more than 2,000 active facts


def nearest_facts(
    tx: Transaction, embedder: Embedder, perspective: PerspectiveRow, facts: Mapping[int, str], count: int
) -> dict[int, list[int]]:
    """The ids of the ``count`` active facts nearest to each of ``facts``, nearest first.

    Up to 2,000 active facts are read once, and each of ``facts`` is compared with them. In a perspective with more
    active facts, each of ``facts`` is compared with the 50 whose vectors are nearest to its own. So the cost grows with
    the number of ``facts``, not of pairs. While most memories have no vector of the embedder, a search for each of
    ``facts`` finds the nearest by their words.

    Args:
        facts: the wording of each fact, by the fact's id.
    """
    if not facts:
        return {}
    wanted = Filter(
        namespace_id=perspective.namespace_id,
        observer=perspective.observer,
        subject=perspective.subject,
        levels=("explicit",),
    )
    wordings = list(facts.values())
    scope, vectors, weight = build_scope(wanted), embedder.embed(wordings), vector_weight(embedder.name)
    few = read_few(tx, scope, embedder.name, wordings, vectors)
    if few is not None:
        scored = [
            (few.ids, standardised(words) + weight * standardised(known_cosines(similar)))
            for words, similar in zip(_word_scores(few), few.cosines, strict=True)
        ]
    else:
        read = read_near(tx, scope, embedder.name, wordings, vectors, max(NEAR, count + 1))
        if read is None:
            return {i: _searched(tx, embedder, wanted, i, wording, count) for i, wording in facts.items()}
        near, memories = read
        scored = [
            (one.ids, standardised(_words_of_near(one, memories)) + weight * standardised(one.cosines)) for one in near
        ]
    found = dict[int, list[int]]()
    for fact_id, (ids, scores) in zip(facts, scored, strict=True):
        best = ids[np.lexsort((ids, -scores.round(9)))[: count + 1]].tolist()
        found[fact_id] = [i for i in best if i != fact_id][:count]
    return found


def _searched(tx: Transaction, embedder: Embedder, wanted: Filter, fact_id: int, wording: str, count: int) -> list[int]:
    near = ranking(tx, embedder, wanted, wording, count + 1, collapsed=False)
    return [one.id for one in near.best if one.id != fact_id][:count]


def _word_scores(few: FewMemories) -> Scores:
    """The BM25 score of each memory (column) for each text (row). ``bm25_word_weights.py`` has the formula."""
    mean_length = max(float(few.lengths.mean()), 1.0) if len(few.lengths) else 1.0
    frequency = few.frequencies * (K1 + 1) / (few.frequencies + K1 * (1 - B + B * few.lengths / mean_length))
    scores = np.zeros((len(few.words), len(few.ids)))
    for of_text, keys in zip(scores, few.words, strict=True):
        starts, ends = (np.searchsorted(few.keys, np.array(keys, np.int64), side) for side in ("left", "right"))
        for key, start, end in zip(keys, starts.tolist(), ends.tolist(), strict=True):
            weight = inverse_document_frequency(Word(key=key, memories=end - start), len(few.ids))
            of_text[few.places[start:end]] += weight * frequency[start:end]
    return scores


def _words_of_near(near: NearMemories, memories: int) -> Scores:
    """The BM25 score of each memory near to a text."""
    if not len(near.ids):
        return np.zeros(0)
    weights = [inverse_document_frequency(Word(key=0, memories=known), memories) for known in near.known]
    mean_length = max(float(near.lengths.mean()), 1.0) if len(near.lengths) else 1.0
    saturation = K1 * (1 - B + B * near.lengths / mean_length)
    frequency = near.frequencies * (K1 + 1) / (near.frequencies + saturation)
    return np.bincount(near.places, np.array(weights)[near.words] * frequency, len(near.ids)).astype(np.float64)
