"""What a ranking has to know before it scores: the question's words, how rare they are, and how much there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import TextClause, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Scope

MOST_WORDS = 32  # of a question, in its order
# Words in more memories than this are counted by upkeep; until then they count as in one more than this.
MOST_COUNTED = 5_000
# A namespace with more vectors than this gets an index; fewer are compared one by one, which is as fast and exact.
MOST_UNINDEXED = 5_000
NARROW = 2_000  # a filter that leaves at most so many memories is searched one by one


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a question: its key in the postings, and how many memories of the namespace have it."""

    key: int
    memories: int


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The words of a question, and the namespace's totals. ``narrow``: the filter leaves few memories."""

    words: tuple[Word, ...]
    memories: int
    mean_length: float
    vectors: int
    narrow: bool

    @property
    def missing_embeddings(self) -> int:
        """How many memories no vector search can find yet."""
        return max(self.memories - self.vectors, 0)


def opening(tx: Transaction, scope: Scope, question: str, model: str) -> Opening:
    """Look up ``question``'s words (English stems, stop words off) and the totals, in one statement."""
    memories, length, vectors, members, words = tx.execute(
        _statement(scope.both if scope.narrow else None), {**scope.values, "question": question, "model": model}
    ).one()
    return Opening(
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
