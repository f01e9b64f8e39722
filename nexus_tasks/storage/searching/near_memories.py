"""Find the memories whose vectors are nearest to each of many texts, and the words in common.

A reflection compares up to a hundred new facts with the facts of a perspective. When these are too many to compare them
all (``few_memories.py``), the vectors choose those to compare. A search for each text (``candidates.py``) would also
find memories by words, and read their neighbours and sources, of which a reflection needs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.reals import Reals
from nexus_tasks.storage.searching.few_memories import Integers, read_words
from nexus_tasks.storage.searching.query_stats import MOST_COUNTED, MOST_UNINDEXED
from nexus_tasks.storage.searching.scope import Scope
from nexus_tasks.storage.searching.vectors import index_name, namespace_vectors


@dataclass(frozen=True, kw_only=True)
class NearMemories:
    """The memories nearest to one text, and what a ranking of them needs.

    - ``ids`` and ``cosines`` are their ids and cosine similarities.
    - ``places``, ``words``, ``frequencies`` and ``lengths`` are the postings of the text's words: the place of a memory
      that has the word, the number of the word in the text, how often the memory has it, and how many words it has.
    - ``known`` has for each word of the text how many memories of the namespace have it.
    """

    ids: Integers
    cosines: NDArray[np.float64]
    places: Integers
    words: Integers
    frequencies: Integers
    lengths: Integers
    known: Sequence[int]


def read_near(
    tx: Transaction, scope: Scope, model: str, texts: Sequence[str], vectors: Vectors, most: int
) -> tuple[list[NearMemories], int] | None:
    """The ``most`` memories that pass a filter and are nearest to each text, and how many memories the namespace has.

    ``None`` when fewer than half of the namespace's memories have a vector of the model, as after a change of the
    model. The vectors cannot choose then.

    Args:
        model: the name of the embedding model.
        texts: the texts. Only the first ``MOST_WORDS`` words of each text count.
        vectors: the model's vector of each text.
    """
    namespace_id = scope.values["namespace_id"]
    words = read_words(tx, namespace_id, texts)
    keys = [key for of_text in words for key in of_text]
    named = {"namespace_id": namespace_id, "model": model, "index": index_name(namespace_id, model)}
    memories, compared, has_index, counted = tx.execute(_TOTALS, {**named, "keys": sorted(set(keys))}).one()
    if 2 * compared < memories:
        return None
    known = dict(counted or ())
    count, dimensions = vectors.shape
    indexed = has_index and compared > MOST_UNINDEXED
    near = (_INDEXED if indexed else _SORTED).format(
        kind=f"halfvec({dimensions})" if indexed else f"vector({dimensions})",
        vectors=namespace_vectors(namespace_id, model),
        fits=scope.both,
        most=int(most),
    )
    found = tx.execute(
        text(near),
        {
            **scope.values,
            "reals": Reals(vectors),
            "count": count,
            "dim": dimensions,
            "keys": keys,
            "ends": [0, *accumulate(map(len, words))],
        },
    )
    # SQLAlchemy's own rows would take longer than the statement.
    rows = np.array(cast(Any, found).cursor.fetchall(), np.float64).reshape(-1, 6)  # NaN for ``None``
    by_text = [
        _near(rows[rows[:, 0] == place], [known.get(key, 0) for key in of_text])
        for place, of_text in enumerate(words, start=1)
    ]
    return by_text, int(memories)


def _near(rows: NDArray[np.float64], known: Sequence[int]) -> NearMemories:
    ids, first, places = np.unique(rows[:, 1], return_index=True, return_inverse=True)
    has = ~np.isnan(rows[:, 3])
    words, frequencies, lengths = rows[has, 3:].astype(np.int64).T
    return NearMemories(
        ids=ids.astype(np.int64),
        cosines=rows[first, 2],
        places=places.reshape(-1)[has],
        words=words - 1,
        frequencies=frequencies,
        lengths=lengths,
        known=known,
    )


# A word that more than 5,000 memories have is counted by upkeep.
_TOTALS = text(
    f"""
    SELECT totals.memories, totals.vectors,
           EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:index) AND indisvalid),
           (
               SELECT array_agg(ARRAY[asked.key, coalesce(common.memories, live.memories)])
               FROM unnest(CAST(:keys AS bigint[])) AS asked (key)
               LEFT JOIN common_words AS common
                   ON common.key = asked.key AND common.namespace_id = :namespace_id
               CROSS JOIN LATERAL (
                   SELECT count(*) AS memories FROM (
                       SELECT FROM postings
                       WHERE key = asked.key AND namespace_id = :namespace_id AND common.key IS NULL
                       LIMIT {MOST_COUNTED + 1}
                   ) AS few
               ) AS live
           )
    FROM (
        SELECT coalesce(sum(count) FILTER (WHERE model = ''), 0) AS memories,
               coalesce(sum(count) FILTER (WHERE model = :model), 0) AS vectors
        FROM search_totals WHERE namespace_id = :namespace_id
    ) AS totals
    """
)
# ``OFFSET 0`` makes Postgres look up each memory and each posting by an index.
_FITTING = (
    "LATERAL (SELECT FROM (SELECT * FROM memories WHERE id = {0}.memory_id OFFSET 0) AS m WHERE {{fits}} OFFSET 0)"
)
_DISTANCE = "CAST(e.vector AS {kind}) <=> asked.vector"
_NEAR = """
    WITH asked AS MATERIALIZED (
        SELECT place, CAST((CAST(:reals AS real[]))[(place - 1) * :dim + 1 : place * :dim] AS {{kind}}) AS vector,
               (CAST(:keys AS bigint[]))[
                   (CAST(:ends AS int[]))[place] + 1 : (CAST(:ends AS int[]))[place + 1]
               ] AS keys
        FROM generate_series(1, :count) AS place
    )
    SELECT asked.place, near.memory_id, 1 - near.distance, p.word, p.frequency, p.length
    FROM asked
    CROSS JOIN LATERAL ({0} LIMIT {{most}}) AS near
    LEFT JOIN LATERAL (
        SELECT of_text.word, posting.frequency, posting.length
        FROM unnest(asked.keys) WITH ORDINALITY AS of_text (key, word)
        CROSS JOIN LATERAL (
            SELECT frequency, length FROM postings WHERE key = of_text.key AND memory_id = near.memory_id OFFSET 0
        ) AS posting
    ) AS p ON true
    """
# With an HNSW index, ORDER BY and LIMIT are in one query, because the planner does not use the index otherwise. Without
# it, a subquery sorts the vectors before any memory is looked up.
_INDEXED = _NEAR.format(
    f"SELECT e.memory_id, {_DISTANCE} AS distance FROM embeddings AS e CROSS JOIN {_FITTING.format('e')} AS fitting"
    f" WHERE {{vectors}} ORDER BY {_DISTANCE}"
)
_SORTED = _NEAR.format(
    "SELECT best.* FROM (SELECT e.memory_id, e.vector <=> asked.vector AS distance FROM embeddings AS e WHERE {vectors}"
    f" ORDER BY distance) AS best CROSS JOIN {_FITTING.format('best')} AS fitting"
)
