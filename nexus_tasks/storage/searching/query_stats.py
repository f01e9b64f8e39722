"""Reading the statistics for BM25: the number of memories with each word of a question, and a namespace's totals.

``cognition/retrieval/bm25_word_weights.py`` makes the weights of the words from these statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import TextClause, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Scope

MOST_WORDS = 32  # a search uses at most this many words of a question, and ignores the later words
# A search counts the memories that contain a word, but stops counting at 5,001. For a word that more than 5,000
# memories contain, the search reads the exact number that upkeep has stored. Until upkeep has counted the word, the
# search scores it as a word in 5,001 memories.
MOST_COUNTED = 5_000
# A namespace with more vectors than this number gets a vector index. With fewer vectors, a search compares each vector,
# because that is exact and as fast as an index.
MOST_UNINDEXED = 5_000
NARROW = 2_000  # a search is narrow when at most this many memories pass the filter


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a question: its key in the postings, and the number of the namespace's memories that contain it."""

    key: int
    memories: int


@dataclass(frozen=True, kw_only=True)
class QueryStats:
    """The words of a question, and the totals of its namespace.

    ``memories`` and ``vectors`` count all memories and vectors of the namespace. ``mean_length`` is the mean number of
    words of a memory. ``narrow`` is true when the filter has a subject or a session, and at most ``NARROW`` memories
    pass the filter.
    """

    words: tuple[Word, ...]
    memories: int
    mean_length: float
    vectors: int
    narrow: bool

    @property
    def missing_embeddings(self) -> int:
        """The number of memories that have no vector. A search finds such a memory only by its words."""
        return max(self.memories - self.vectors, 0)


def read_query_stats(tx: Transaction, scope: Scope, question: str, model: str) -> QueryStats:
    """Count the memories that contain each word of ``question``, and read the namespace's totals.

    The words are English stems. Stop words are left out.
    """
    memories, length, vectors, members, words = tx.execute(
        _statement(scope.both if scope.narrow else None), {**scope.values, "question": question, "model": model}
    ).one()
    return QueryStats(
        words=tuple(Word(key=key, memories=n) for key, n in words or () if n),
        memories=int(memories),
        mean_length=float(length) / max(int(memories), 1),
        vectors=int(vectors),
        narrow=scope.narrow and members <= NARROW,
    )


@lru_cache(maxsize=256)
def _statement(members: str | None) -> TextClause:
    counted = (
        f"(SELECT count(*) FROM (SELECT FROM memories AS m WHERE {members} LIMIT {NARROW + 1}) AS few)"
        if members
        else "0"
    )
    return text(
        f"""
        SELECT totals.memories, totals.length, totals.vectors, {counted}, asked.words
        FROM (
            SELECT coalesce(sum(count) FILTER (WHERE model = ''), 0) AS memories,
                   coalesce(sum(length), 0) AS length,
                   coalesce(sum(count) FILTER (WHERE model = :model), 0) AS vectors
            FROM search_totals WHERE namespace_id = :namespace_id
        ) AS totals
        CROSS JOIN (
            SELECT array_agg(ARRAY[word.key, coalesce(common.memories, live.memories)] ORDER BY word.place) AS words
            FROM (
                SELECT hashtextextended(lexeme, :namespace_id) AS key, positions[1] AS place
                FROM unnest(to_tsvector('english', :question))
                ORDER BY place LIMIT {MOST_WORDS}
            ) AS word
            LEFT JOIN common_words AS common ON common.key = word.key
            CROSS JOIN LATERAL (
                SELECT count(*) AS memories
                FROM (SELECT FROM postings WHERE key = word.key AND common.key IS NULL LIMIT {MOST_COUNTED + 1}) AS few
            ) AS live
        ) AS asked
        """
    )
