"""Reading the statistics for BM25: the number of memories with each word of a question, and a namespace's totals.

``cognition/retrieval/bm25_word_weights.py`` makes the weights of the words from these statistics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sqlalchemy import TextClause, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Scope
from nexus_tasks.storage.searching.vectors import index_name
from nexus_tasks.text import STOP_WORDS

_NAME = re.compile(r"[^\W_]++(?:['’.\-][^\W_]++)*+")
MOST_WORDS = 32  # a search uses at most this many words of a question, and ignores the later words
# A search counts the memories that contain a word, but stops counting at 5,001. For a word that more than 5,000
# memories contain, the search reads the exact number that upkeep has stored. Until upkeep has counted the word, the
# search scores it as a word in 5,001 memories.
MOST_COUNTED = 5_000
# A namespace with more vectors than this number gets a vector index. With fewer vectors, and until upkeep has built the
# index, a search compares each vector. With fewer vectors that is exact and as fast as an index.
MOST_UNINDEXED = 5_000
NARROW = 2_000  # a search is narrow when at most this many memories pass the filter


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a question: its key in the postings, and the number of the namespace's memories that contain it.

    ``names`` says whether the word is part of the name of an author or a subject of the namespace.
    """

    key: int
    memories: int
    names: bool = False


@dataclass(frozen=True, kw_only=True)
class QueryStats:
    """The words of a question, also those that no memory contains, and the totals of its namespace.

    ``memories`` and ``vectors`` count all memories and vectors of the namespace. ``mean_length`` is the mean number of
    words of a memory. ``indexed`` is true when there are more than ``MOST_UNINDEXED`` vectors and they have an index.
    ``narrow`` is true when the filter has a subject or a session, and at most ``NARROW`` memories pass the filter.
    ``named`` are the authors and subjects that the question names.
    """

    words: tuple[Word, ...]
    memories: int
    mean_length: float
    vectors: int
    indexed: bool
    narrow: bool
    named: tuple[str, ...] = ()

    @property
    def missing_embeddings(self) -> int:
        """The number of memories that have no vector. A search finds such a memory only by its words."""
        return max(self.memories - self.vectors, 0)


def read_query_stats(tx: Transaction, scope: Scope, question: str, model: str) -> QueryStats:
    """Count the memories that contain each word of ``question``, and read the namespace's totals.

    The words are stems of the namespace's language, or of the question's where the namespace names none. Stop words are
    left out.
    """
    memories, length, vectors, indexed, members, words, named = tx.execute(
        _statement(scope.both if scope.narrow else None),
        {
            **scope.values,
            "question": question,
            "model": model,
            "index": index_name(scope.values["namespace_id"], model),
            "names": possible_names(question),
        },
    ).one()
    return QueryStats(
        words=tuple(Word(key=key, memories=n, names=bool(names)) for key, n, names in words or ()),
        memories=int(memories),
        mean_length=float(length) / max(int(memories), 1),
        vectors=int(vectors),
        indexed=bool(indexed) and vectors > MOST_UNINDEXED,
        narrow=scope.narrow and members <= NARROW,
        named=tuple(named or ()),
    )


def possible_names(question: str) -> list[str]:
    """The words of a question, and pairs of words, that may be the name of a person, in several spellings.

    A name is found as it is written ("Ann Lee"), in lower case ("user") and with a capital ("Ann" for "ann").
    """
    written = [word.removesuffix("'s").removesuffix("’s") for word in _NAME.findall(question)[:MOST_WORDS]]
    kept = [word for word in written if word.lower() not in STOP_WORDS]
    pairs = [f"{first} {second}" for first, second in pairwise(written)]
    return list(dict.fromkeys(name for word in kept for name in (word, word.lower(), word.title()))) + [
        name for pair in pairs for name in dict.fromkeys((pair, pair.title()))
    ]


@lru_cache(maxsize=256)
def _statement(members: str | None) -> TextClause:
    counted = (
        f"(SELECT count(*) FROM (SELECT FROM memories AS m WHERE {members} LIMIT {NARROW + 1}) AS few)"
        if members
        else "0"
    )
    return text(
        f"""
        WITH spoken AS MATERIALIZED (
            SELECT ('pg_catalog.' || language)::regconfig AS language FROM namespaces WHERE id = :namespace_id
        ), named AS MATERIALIZED (
            SELECT name FROM unnest(CAST(:names AS text[])) AS name
            WHERE EXISTS (SELECT FROM memories AS m WHERE m.namespace_id = :namespace_id AND m.author = name)
        )
        SELECT totals.memories, totals.length, totals.vectors,
               EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:index) AND indisvalid),
               {counted}, asked.words,
               (SELECT array_agg(name) FROM named)
        FROM (
            SELECT coalesce(sum(count) FILTER (WHERE model = ''), 0) AS memories,
                   coalesce(sum(length), 0) AS length,
                   coalesce(sum(count) FILTER (WHERE model = :model), 0) AS vectors
            FROM search_totals WHERE namespace_id = :namespace_id
        ) AS totals
        CROSS JOIN (
            SELECT array_agg(
                       ARRAY[word.key, coalesce(common.memories, live.memories), word.names] ORDER BY word.place
                   ) AS words
            FROM (
                SELECT hashtextextended(lexeme, :namespace_id) AS key, positions[1] AS place,
                       (lexeme IN (
                           SELECT (unnest(search_terms(name, (SELECT language FROM spoken)))).lexeme FROM named
                       ))::int AS names
                FROM unnest(search_terms(:question, (SELECT language FROM spoken)))
                ORDER BY place LIMIT {MOST_WORDS}
            ) AS word
            LEFT JOIN common_words AS common
                   ON common.key = word.key AND common.namespace_id = :namespace_id
            CROSS JOIN LATERAL (
                SELECT count(*) AS memories
                FROM (
                    SELECT FROM postings
                    WHERE key = word.key AND namespace_id = :namespace_id AND common.key IS NULL
                    LIMIT {MOST_COUNTED + 1}
                ) AS few
            ) AS live
        ) AS asked
        """
    )
