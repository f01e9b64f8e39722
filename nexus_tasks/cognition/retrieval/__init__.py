"""Search by words and vectors: ``bm25`` weighs words, ``fusion`` makes one order of both arms, ``find`` does it."""

from nexus_tasks.cognition.retrieval.nearest import nearest_facts
from nexus_tasks.cognition.retrieval.search import ranking, search

__all__ = ["nearest_facts", "ranking", "search"]
