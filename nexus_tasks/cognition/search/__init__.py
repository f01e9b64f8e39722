"""Search by words and vectors: ``bm25`` weighs words, ``fusion`` makes one order of both arms, ``find`` does it."""

from nexus_tasks.cognition.search.find import ranking, search
from nexus_tasks.cognition.search.nearest import nearest_facts

__all__ = ["nearest_facts", "ranking", "search"]
