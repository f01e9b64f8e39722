"""Find the nearest facts of a perspective, by words and vectors. A reflection compares a new fact with these facts."""

from __future__ import annotations

from collections.abc import Mapping

from nexus_tasks.cognition.retrieval.search import ranking
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.storage.searching.scope import Filter


def nearest_facts(
    tx: Transaction, embedder: Embedder, perspective: PerspectiveRow, facts: Mapping[int, str], count: int
) -> dict[int, list[int]]:
    """The ids of the ``count`` active facts nearest to each of ``facts``, nearest first.

    The function makes one search per fact. So the cost grows with the number of ``facts``, not of pairs of facts.

    Args:
        facts: the wording of each fact, by the fact's id.
    """
    wanted = Filter(
        namespace_id=perspective.namespace_id,
        observer=perspective.observer,
        subject=perspective.subject,
        levels=("explicit",),
    )
    found, narrow = dict[int, list[int]](), None
    for fact_id, wording in facts.items():
        near = ranking(tx, embedder, wanted, wording, count + 1, collapsed=False, narrow=narrow)
        found[fact_id] = [one.id for one in near.best if one.id != fact_id][:count]
        narrow = near.narrow
    return found
