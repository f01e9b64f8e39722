"""The first half of BM25: the weight of each word of a question, and which words may find memories.

The BM25 score of a memory is the sum, over the words of the question that it contains, of

    weight · frequency · (K1 + 1) / (frequency + K1 · (1 − B + B · length / mean length))

``weight`` is computed here (:func:`inverse_document_frequency`). The sum is computed in SQL, in
``storage/searching/candidates.py``, with K1 = 0.9 and B = 0.4. ``frequency`` is how often the memory has the word.
``length`` is the number of the memory's words without stop words.
"""

from __future__ import annotations

import math

from nexus_tasks.storage.searching.candidates import WeightedWord
from nexus_tasks.storage.searching.query_stats import QueryStats, Word

# The words that find memories have at most this many postings (pairs of word and memory) together, unless the rarest
# word alone has more. On 100,000 memories, recall@10 was 0.356 with 2,500 postings, 0.399 with 5,000 and 0.390 with
# 20,000.
MOST_POSTINGS = 5_000


def weigh_words(opening: QueryStats) -> list[WeightedWord]:
    """The question's words with their weights, the rarest first.

    The rarest words may find memories: at least one word, and more while all of them together have at most
    :data:`MOST_POSTINGS` postings. The other words only score the memories that were found.
    """
    found: list[WeightedWord] = []
    spent = 0
    for word in sorted(opening.words, key=lambda word: (word.memories, word.key)):
        spent += word.memories
        finds = not found or spent <= MOST_POSTINGS
        found.append(WeightedWord(key=word.key, weight=inverse_document_frequency(word, opening.memories), finds=finds))
    return found


def inverse_document_frequency(word: Word, memories: int) -> float:
    """The weight of a word that n of N memories have: ln(1 + (N − n + ½) / (n + ½)). It is never negative.

    This is Lucene's form of BM25's weight. Example for N = 1,000: a word in one memory weighs ln(1 + 999.5 / 1.5) =
    6.50, a word in 100 memories ln(1 + 900.5 / 100.5) = 2.30, a word in all memories 0.0005.
    """
    total = max(memories, word.memories)  # the two counts may have been made at different times
    return math.log(1 + (total - word.memories + 0.5) / (word.memories + 0.5))
