"""Finding candidates (memories that may answer a question) by words and by vectors, and scoring them.

One SQL statement finds at most ``pool`` memories by words and at most ``nearest`` memories by vectors. For each message
among these, the statement adds the previous and the next message of the session, and for each fact the messages that it
was derived from. Every candidate gets a BM25 score for its words, and a cosine similarity for its vector.

A narrow search scores every memory that passes the filter. A wide search finds memories only by rare words. A common
word finds no memories, because it has too many postings, and BM25 takes 0.7 µs per posting. A common word only adds to
the scores of memories that are found already. (A posting is a row that says how often one word is in one memory.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.types import NullType

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import INDEX_READS, Transaction
from nexus_tasks.storage.searching.query_stats import MOST_COUNTED, NARROW
from nexus_tasks.storage.searching.scope import Scope
from nexus_tasks.storage.searching.vectors import as_text, distance, namespace_vectors

K1, B = 0.9, 0.4  # BM25's parameters for short texts of uneven length, as in Anserini (Yang et al., SIGIR 2017)


# The vectors that a search compares: the vectors of the memories that pass the filter ("narrow"), all vectors of the
# namespace ("all"), or the vectors that an HNSW index finds ("indexed").
VectorScan: TypeAlias = Literal["narrow", "all", "indexed"]


@dataclass(frozen=True, kw_only=True)
class WeightedWord:
    """A word of a question.

    ``key`` is the word's hash in the postings. ``weight`` is what BM25 counts it for, and ``rarity`` is its inverse
    document frequency. ``finds`` says whether the word finds memories. A word that does not find memories adds to the
    scores of memories that other words or vectors find.
    """

    key: int
    weight: float
    rarity: float
    finds: bool


class Candidate(NamedTuple):
    """A memory that may answer a question.

    A candidate passes the filter, or is the message directly before or after a message that passes the filter, or is a
    source of a fact that passes the filter. Times are seconds since the epoch, because a ranking computes with those of
    a thousand candidates.
    """

    id: int
    session_id: int | None  # the session of a message or a digest; ``None`` for other memories
    seq: int | None  # the ``seq`` of a message; ``None`` for other memories
    fits: bool  # whether the memory passes the filter
    words: float  # the BM25 score; 0 when the memory contains none of the words
    vector: float | None  # the cosine similarity; ``None`` when the memory has no vector
    occurred_at: float
    confidence: float
    validated_at: float  # the time when the memory was last confirmed, or else stored
    author: str | None = None  # the author of a message, or the subject of a fact
    tokens: int = 0  # the estimated tokens of its content
    level: str = "raw"
    content_key: str | None = None  # equal for facts with the same content words
    event_from: float | None = None  # the time of which a fact speaks, from here to ``event_to``
    event_to: float | None = None
    sources: Sequence[int] = ()  # the messages that a fact was derived from; empty for other memories
    has: int = 0  # the question's words that the memory has: bit n is set for the n-th of ``find_candidates``'s words


def find_candidates(
    tx: Transaction,
    scope: Scope,
    words: Sequence[WeightedWord],
    *,
    mean_length: float,
    model: str,
    vector: Vectors,
    pool: int,
    nearest: int,
    way: VectorScan,
) -> list[Candidate]:
    """Find and score candidates: memories that the words or the vector find, and the neighbours of found messages.

    Args:
        words: the question's words with their weights.
        mean_length: the mean number of words of the namespace's memories. BM25 needs this number.
        model: the name of the embedding model.
        vector: the question's vector, which the embedding model made.
        pool: the largest number of memories to find by words.
        nearest: the largest number of memories to find by vectors.
        way: the vectors to compare. With ``narrow`` every memory that passes the filter is also scored by its words.

    Returns:
        The candidates in no particular order.
    """
    narrow = way == "narrow"
    bits = {word.key: 1 << place for place, word in enumerate(words)}  # at most ``MOST_WORDS``, so they fit in 64 bits
    finding = [word for word in words if word.finds or narrow]
    scoring = list(words) if narrow else [word for word in words if not word.finds]
    where = namespace_vectors(scope.values["namespace_id"], model)
    rows = tx.execute(
        _statement(scope.visible, scope.selected, where, len(vector), way, pool, nearest),
        {
            **scope.values,
            "finding": _array(word.key for word in finding),
            "finding_weights": _array(word.weight for word in finding),
            "finding_bits": _array(bits[word.key] for word in finding),
            "scoring": _array(word.key for word in scoring),
            "scoring_weights": _array(word.weight for word in scoring),
            "scoring_bits": _array(bits[word.key] for word in scoring),
            "saturation": K1 * (1 - B),
            "per_word": K1 * B / max(mean_length, 1.0),
            "most": K1 + 1,
            "vector": as_text(vector),
        },
    )
    # SQLAlchemy's own rows would take half of the time that this process needs for a search.
    return [tuple.__new__(Candidate, row) for row in cast(Any, rows).cursor.fetchall()]


def _array(numbers: Iterable[float]) -> str:
    """Write numbers in the text form of an array. The driver takes ten times as long to write a list of Python's."""
    return f"{{{','.join(map(str, numbers))}}}"


# Constants are cast to float8. Without the cast Postgres takes them for the type numeric, which is ten times slower.
# What does not depend on the posting is computed by Python, once: a common word has 5,000 postings.
_BM25 = (
    "sum(asked.weight * CAST(:most AS float8) * p.frequency"
    " / (p.frequency + CAST(:saturation AS float8) + CAST(:per_word AS float8) * p.length))"
)
_SECONDS = "date_part('epoch', {0})"
_BY_ID = "SELECT * FROM memories WHERE id = {0}.memory_id OFFSET 0"
_AMONG = "{0} = ANY (CAST((SELECT ids FROM {1}) AS bigint[]))"
# The subqueries hide the number of words from the planner. Otherwise it plans each search anew, which takes 1 ms.
_ASKED = (
    "unnest((SELECT CAST(:{0} AS bigint[])), (SELECT CAST(:{0}_weights AS float8[])),"
    " (SELECT CAST(:{0}_bits AS bigint[]))) AS asked (key, weight, bit)"
)
# The best four times as many memories as are needed are sorted first. The others are sorted only when too few of these
# pass the filter, because the sort of 5,000 memories takes four times as long.
FIRST_SORTED = 4
_FINDING, _SCORING = _ASKED.format("finding"), _ASKED.format("scoring")


# What the candidates have in memories, postings and vectors is read by an array of their ids, with one scan of an index
# for all of them. A scan for each candidate takes Postgres a third longer for the whole search.
#
# ``OFFSET 0`` makes Postgres look up each memory by an index. Without it the planner read whole tables of up to 30,000
# memories, which took longer than a search among 100,000.
#
# By old statistics a namespace may look as if it had one message. An index of namespaces then looks as good as the
# right index, and each look-up by it reads the whole namespace. So a memory is looked up by its id alone, before its
# namespace is compared. And a neighbour is read in the order of ``seq``, which only the index of sessions and ``seq``
# has.
#
# The sums that give the neighbours' ``seq`` are outside the join's condition. Under row-level security, Postgres looks
# up an index only by conditions whose operators cannot fail, and a sum can overflow.
@lru_cache(maxsize=1_024)
def _statement(
    visible: str, selected: str, vectors_of: str, dimensions: int, way: VectorScan, pool: int, nearest: int
) -> TextClause:
    # ``pool`` and ``nearest`` are numbers in the statement's text and not parameters. The planner then knows that few
    # rows are needed.
    narrow, indexed = way == "narrow", way == "indexed"
    near = distance(dimensions, indexed=indexed)
    if narrow:
        arms = _every_member(f"{visible} AND {selected}", vectors_of, near, pool, nearest)
    else:
        arms = _best_first(f"{visible} AND {selected}", vectors_of, near, pool, nearest, indexed=indexed)
    return text(
        f"""
        WITH {arms},
        picked AS (SELECT memory_id FROM worded UNION SELECT memory_id FROM near),
        chosen AS MATERIALIZED (SELECT array_agg(memory_id ORDER BY memory_id) AS ids FROM picked),
        rests AS (
            SELECT memory_id, source_id
            FROM (SELECT * FROM evidence WHERE {_AMONG.format("memory_id", "chosen")} OFFSET 0) AS e
            WHERE role = 'derived_from'
        ),
        around AS (
            SELECT unnest(ids) AS memory_id FROM chosen
            UNION
            SELECT next.id
            FROM (
                SELECT namespace_id, session_id, seq - 1 AS first, seq + 1 AS last FROM memories
                WHERE {_AMONG.format("id", "chosen")} AND level = 'raw' OFFSET 0
            ) AS turn
            CROSS JOIN LATERAL (
                SELECT id FROM memories
                WHERE namespace_id = turn.namespace_id AND session_id = turn.session_id AND level = 'raw'
                      AND seq BETWEEN turn.first AND turn.last
                ORDER BY seq LIMIT 3
            ) AS next
            UNION
            SELECT source_id FROM rests
        ),
        every AS MATERIALIZED (SELECT array_agg(memory_id ORDER BY memory_id) AS ids FROM around),
        more AS MATERIALIZED (
            SELECT p.memory_id, {_BM25} AS score, bit_or(asked.bit) AS has
            FROM {_SCORING}
            CROSS JOIN LATERAL (
                SELECT memory_id, frequency, length FROM postings
                WHERE key = asked.key AND {_AMONG.format("memory_id", "every")} OFFSET 0
            ) AS p
            GROUP BY p.memory_id
        ),
        cosines AS MATERIALIZED (
            SELECT e.memory_id, 1 - ({distance(dimensions, indexed=False)}) AS cosine
            FROM (SELECT * FROM embeddings WHERE {_AMONG.format("memory_id", "every")} OFFSET 0) AS e
            WHERE {vectors_of}
        ),
        told AS (SELECT memory_id, array_agg(source_id) AS sources FROM rests GROUP BY memory_id)
        SELECT m.id, CASE WHEN m.level IN ('raw', 'summary_short', 'summary_long') THEN m.session_id END, m.seq,
               ({selected}) IS TRUE,
               {"coalesce(more.score, 0)" if narrow else "coalesce(scored.score, 0) + coalesce(more.score, 0)"},
               cosines.cosine, {_SECONDS.format("m.occurred_at")}, m.confidence,
               {_SECONDS.format("coalesce(m.last_validated_at, m.created_at)")},
               m.author, m.tokens, m.level, m.content_key,
               {_SECONDS.format("m.event_from")}, {_SECONDS.format("m.event_to")}, coalesce(told.sources, '{{}}'),
               {"coalesce(more.has, 0)" if narrow else "coalesce(scored.has, 0) | coalesce(more.has, 0)"}
        FROM (SELECT * FROM memories WHERE {_AMONG.format("id", "every")} OFFSET 0) AS m
        {"" if narrow else "LEFT JOIN scored ON scored.memory_id = m.id"}
        LEFT JOIN more ON more.memory_id = m.id
        LEFT JOIN cosines ON cosines.memory_id = m.id
        LEFT JOIN told ON told.memory_id = m.id
        WHERE {visible}
        """
    ).bindparams(bindparam("vector", type_=NullType()))


def _best_first(fits: str, vectors_of: str, near: str, pool: int, nearest: int, *, indexed: bool) -> str:
    """The SQL of the CTEs ``scored``, ``worded`` and ``near`` for a wide search.

    ``scored`` computes BM25 scores. ``worded`` reads memories by falling BM25 score, and ``near`` reads memories by
    falling similarity. ``worded`` and ``near`` skip memories that do not pass the filter, and stop at ``pool`` and
    ``nearest`` memories. ``OFFSET 0`` keeps the planner from joining all memories first. Without an HNSW index, a
    subquery sorts the vectors before any memory is looked up. With an HNSW index, ORDER BY and LIMIT are in one query,
    because the planner does not use the index otherwise.
    """
    looked_up = f"LATERAL (SELECT FROM ({_BY_ID}) AS m WHERE {{1}} OFFSET 0) AS fitting"
    if indexed and nearest < INDEX_READS:
        # The subquery is a filter that Postgres evaluates once, before it begins to read the index.
        vectors_of += f" AND (SELECT set_config('hnsw.ef_search', '{int(nearest)}', true)) IS NOT NULL"
    nearest_vectors = f"FROM embeddings AS e {{0}} WHERE {vectors_of} ORDER BY {near}"
    found = (
        "SELECT e.memory_id " + nearest_vectors.format(f"CROSS JOIN {looked_up.format('e', fits)}")
        if indexed
        else f"SELECT best.memory_id FROM (SELECT memory_id {nearest_vectors.format('')}) AS best"
        f" CROSS JOIN {looked_up.format('best', fits)}"
    )
    best_first = "ORDER BY score DESC, memory_id DESC"
    return f"""
        scored AS MATERIALIZED (
            SELECT p.memory_id, {_BM25} AS score, bit_or(asked.bit) AS has
            FROM {_FINDING}
            CROSS JOIN LATERAL (
                SELECT memory_id, frequency, length FROM postings
                WHERE key = asked.key AND namespace_id = :namespace_id ORDER BY memory_id DESC LIMIT {MOST_COUNTED}
            ) AS p
            GROUP BY p.memory_id
        ),
        worded AS (
            SELECT best.memory_id
            FROM (
                (SELECT memory_id FROM scored {best_first} LIMIT {FIRST_SORTED * pool})
                UNION ALL
                (SELECT memory_id FROM scored {best_first} OFFSET {FIRST_SORTED * pool})
            ) AS best
            CROSS JOIN {looked_up.format("best", fits)}
            LIMIT {pool}
        ),
        near AS ({found} LIMIT {nearest})"""


def _every_member(fits: str, vectors_of: str, near: str, pool: int, nearest: int) -> str:
    """The SQL of the CTEs ``member``, ``worded`` and ``near`` for a narrow search.

    In a narrow search at most ``NARROW`` memories pass the filter. ``member`` reads all of them. ``worded`` and
    ``near`` choose the best of them by words and by vectors.
    """
    return f"""
        member AS MATERIALIZED (SELECT m.id AS memory_id FROM memories AS m WHERE {fits} LIMIT {NARROW}),
        worded AS (
            SELECT member.memory_id
            FROM {_FINDING}
            CROSS JOIN member
            JOIN postings AS p ON p.key = asked.key AND p.memory_id = member.memory_id
            GROUP BY member.memory_id
            ORDER BY {_BM25} DESC, member.memory_id DESC
            LIMIT {pool}
        ),
        near AS (
            SELECT member.memory_id
            FROM member JOIN embeddings AS e ON e.memory_id = member.memory_id AND {vectors_of}
            ORDER BY {near}
            LIMIT {nearest}
        )"""
