"""Search memories by words (BM25) and by vectors. The two scores are fused into one order.

A search (``search.py``) computes its scores in four steps:

1. ``storage/searching/query_stats.py`` counts the memories that have each word of the question.
2. ``bm25_word_weights.py`` computes the first half of BM25: the weight of each word (inverse document frequency). This
   module also decides which words may find memories.
3. ``storage/searching/candidates.py`` finds the candidates with SQL. The SQL computes the second half of BM25 (constant
   ``_BM25``), which is a sum over the words of a memory, and the cosine similarity of the vectors.
4. ``fusion.py`` adds to each score a share of the neighbouring turns' scores, and standardises the scores. It then adds
   up the two scores and small bonuses for confidence and recency, and sorts the candidates by the sum.

``nearest.py`` finds the facts nearest to a fact, by the same two scores.
"""

from nexus_tasks.cognition.retrieval.nearest import nearest_facts
from nexus_tasks.cognition.retrieval.search import EmbeddedQuestion, Ranking, ranking, search

__all__ = ["EmbeddedQuestion", "Ranking", "nearest_facts", "ranking", "search"]
