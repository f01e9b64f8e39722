"""The first half of BM25: the weight of each word of a question, and which words may find memories.

The BM25 score of a memory is the sum, over the words of the question that it contains, of

    weight · frequency · (K1 + 1) / (frequency + K1 · (1 − B + B · length / mean length))

``weight`` is computed here (:func:`inverse_document_frequency`). The sum is computed in SQL, in
``storage/searching/candidates.py``, with K1 = 0.9 and B = 0.4. ``frequency`` is how often the memory has the word,
``length`` its number of words without stop words.
"""

from __future__ import annotations

import math

from nexus_tasks.storage.searching.candidates import WeightedWord
from nexus_tasks.storage.searching.query_stats import QueryStats, Word

# How many postings (pairs of word and memory) may find memories. On 100,000 memories, recall@10 was 0.356 with 2,500,
# 0.399 with 5,000 and 0.390 with 20,000.
MOST_POSTINGS = 5_000


def weigh_words(opening: QueryStats) -> list[WeightedWord]:
    """The question's words with their weights, the rarest first.

    The rarest words may find memories, as many of them as have at most :data:`MOST_POSTINGS` postings together, and at
    least one. The other words only score the memories that were found.
    """
    found: list[WeightedWord] = []
    spent = 0
    for word in sorted(opening.words, key=lambda word: (word.memories, word.key)):
        spent += word.memories
        finds = not found or spent <= MOST_POSTINGS
        found.append(WeightedWord(key=word.key, weight=inverse_document_frequency(word, opening.memories), finds=finds))
    return found


def inverse_document_frequency(word: Word, memories: int) -> float:
    """How much a word weighs: ln(1 + (N − n + ½) / (n + ½)), for n of N memories that have it. Never negative.

    This is Lucene's form of BM25's weight. Example: of 1,000 memories, a word in one of them weighs ln(1 + 999.5 / 1.5)
    = 6.50, a word in 100 of them ln(1 + 900.5 / 100.5) = 2.30, a word in all of them 0.0005.
    """
    total = max(memories, word.memories)  # the counts may be of different moments
    return math.log(1 + (total - word.memories + 0.5) / (word.memories + 0.5))
