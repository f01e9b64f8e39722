"""Compute the first half of BM25, the weight of each word of a question, and choose the words that find memories.

BM25 scores how well a memory's words fit a question. Each word of the question that the memory has adds this number to
the memory's score:

    weight · frequency · (K1 + 1) / (frequency + K1 · (1 − B + B · length / mean length))

``weight`` is computed in this module: the word's inverse document frequency, less a part in a long question (see
:data:`LONG`). ``storage/searching/candidates.py`` computes the sum in SQL, with K1 = 0.9 and B = 0.4. ``frequency`` is
the number of times that the memory has the word. ``length`` is the number of the memory's words without stop words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nexus_tasks.storage.searching.candidates import WeightedWord
from nexus_tasks.storage.searching.query_stats import QueryStats, Word

# A posting is a pair of a word and a memory with the word. All words that find memories have at most this many postings
# together, unless the rarest word alone has more. On 100,000 memories, recall@10 was 0.356 with 2,500 postings, 0.399
# with 5,000 postings and 0.390 with 20,000 postings.
MOST_POSTINGS = 5_000
# A question of more words than this is long. It is a message of a conversation, and most of its words are common.
# Together they outweighed the rare ones. So LONG_LESS is subtracted from the rarity of each word, and a word that every
# seventh memory has weighs nothing. In a small namespace all rarities are low. There a third of the greatest rarity is
# subtracted, when that is less. RealMem's questions have 275 characters on average. Of the sessions that
# answer them, 0.743 are among the first ten, and 0.715 when the rarities of a long question counted with the power 1.5.
LONG, LONG_LESS, LONG_PART = 8, 2.0, 1 / 3
ENOUGH = 6  # words of a long question, by which a memory is measured (see ``FLOOR`` in ``context/by_query.py``)


def weigh_words(opening: QueryStats) -> list[WeightedWord]:
    """The question's words with their weights, the rarest first.

    The rarest word finds memories. The next rarest words also find memories, as long as these words have at most
    :data:`MOST_POSTINGS` postings together. The other words only add to the scores of the memories found.

    The names of authors and subjects are left out, unless the question has no other word: the author of a memory counts
    for more than a name in its text (see ``fusion.py``). "Yeah, Caroline, sure" answers no question about Caroline.
    """
    found: list[WeightedWord] = []
    spent = 0
    words = _without_names([word for word in opening.words if word.memories])
    rarities = {word.key: inverse_document_frequency(word, opening.memories) for word in words}
    less = min(LONG_LESS, LONG_PART * max(rarities.values())) if len(words) > LONG else 0.0
    for word in sorted(words, key=lambda word: (word.memories, word.key)):
        spent += word.memories
        finds = not found or spent <= MOST_POSTINGS
        rarity = rarities[word.key]
        found.append(WeightedWord(key=word.key, weight=max(rarity - less, 0.0), rarity=rarity, finds=finds))
    return found


def rarity_of_all(opening: QueryStats) -> float:
    """The rarity of all words of the question, also of the words that no memory has.

    Of a question only the :data:`ENOUGH` rarest words count, because no memory has all of its words.
    """
    rarities = sorted(inverse_document_frequency(word, opening.memories) for word in _without_names(opening.words))
    return sum(rarities[-ENOUGH:])


def _without_names(words: Sequence[Word]) -> Sequence[Word]:
    return [word for word in words if not word.names] or words


def inverse_document_frequency(word: Word, memories: int) -> float:
    """The rarity of a word that n of N memories have: ln(1 + (N − n + ½) / (n + ½)). It is never negative.

    Lucene uses the same formula. Example for N = 1,000: a word in one memory has ln(1 + 999.5 / 1.5) = 6.50. A word in
    100 memories has ln(1 + 900.5 / 100.5) = 2.30. A word in all memories has 0.0005.
    """
    # The two counts may come from different times, so the word's count may be greater than the count of all memories.
    total = max(memories, word.memories)
    return math.log(1 + (total - word.memories + 0.5) / (word.memories + 0.5))
