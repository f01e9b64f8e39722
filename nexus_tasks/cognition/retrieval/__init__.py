"""Search by words (BM25) and vectors, fused into one order.

Where a score is computed, in the order of a search (``search.py``):

1. ``storage/searching/query_stats.py`` looks up the question's words: in how many memories each of them is.
2. ``bm25_word_weights.py`` computes the first half of BM25, the weight of each word (inverse document frequency), and
   decides which words may find memories.
3. ``storage/searching/candidates.py`` finds the candidates, and computes in SQL the second half of BM25 (the sum over
   the words of a memory, constant ``_BM25``) and the cosine similarity of the vectors.
4. ``fusion.py`` adds the neighbouring turns' share, standardises both scores, adds them up with small bonuses for
   confidence and recency, and sorts.

``nearest.py`` uses the same search to find the facts nearest to a fact.
"""

from nexus_tasks.cognition.retrieval.nearest import nearest_facts
from nexus_tasks.cognition.retrieval.search import ranking, search

__all__ = ["nearest_facts", "ranking", "search"]
