"""Compare the few memories that pass a filter with many texts at once: their vectors, and the words in common.

A reflection looks for the memories nearest to each of up to a hundred facts, always among the same memories. Among
1,900 memories, a narrow search for each text (``candidates.py``) took 4 times as long for one, and 13 times as long for
a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.reals import Reals
from nexus_tasks.storage.searching.query_stats import MOST_COUNTED, MOST_WORDS, NARROW
from nexus_tasks.storage.searching.scope import Scope
from nexus_tasks.storage.searching.vectors import namespace_vectors

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FewMemories:
    """Memories in the order of their ids, and what a ranking of them for some texts needs.

    - ``cosines`` has a row for each text: the cosine similarity of each memory, or NaN for a memory without a vector.
    - ``words`` has for each text the keys of its words.
    - ``keys``, ``places``, ``frequencies`` and ``lengths`` are the postings of these words, in the order of the keys: a
      word's key, the place of a memory that has the word, how often it has it, and how many words it has.
    """

    ids: Integers
    cosines: NDArray[np.float64]
    words: Sequence[Sequence[int]]
    keys: Integers
    places: Integers
    frequencies: Integers
    lengths: Integers


def read_few(tx: Transaction, scope: Scope, model: str, texts: Sequence[str], vectors: Vectors) -> FewMemories | None:
    """The memories that pass a filter, or ``None`` when no memory or more than ``NARROW`` memories pass.

    Args:
        model: the name of the embedding model.
        texts: the texts. Only the first ``MOST_WORDS`` words of each text are looked up.
        vectors: the model's vector of each text.
    """
    namespace_id = scope.values["namespace_id"]
    own = namespace_vectors(namespace_id, model)
    statement = text(_COSINES.format(fits=scope.both, vectors=own, most=NARROW))
    count, dimensions = vectors.shape
    found = tx.execute(statement, {**scope.values, "reals": Reals(vectors), "count": count, "dim": dimensions}).all()
    if not found:
        return None
    ids = np.sort(np.array(found[0][0], np.int64))
    cosines = np.empty((count, len(ids)))
    for of_text, (memories, similar) in zip(cosines, found, strict=True):
        of_text[np.searchsorted(ids, memories)] = np.array(similar, np.float64)  # NaN for ``None``
    words = read_words(tx, namespace_id, texts)
    asked = sorted({key for of_text in words for key in of_text})
    postings = tx.execute(_POSTINGS, {"namespace_id": namespace_id, "keys": asked, "ids": ids.tolist()})
    # SQLAlchemy's own rows would take longer than the statement.
    rows = np.array(cast(Any, postings).cursor.fetchall(), np.int64).reshape(-1, 4)
    keys, memory_ids, frequencies, lengths = rows[np.argsort(rows[:, 0], kind="stable")].T
    return FewMemories(
        ids=ids,
        cosines=cosines,
        words=words,
        keys=keys,
        places=np.searchsorted(ids, memory_ids),
        frequencies=frequencies,
        lengths=lengths,
    )


def read_words(tx: Transaction, namespace_id: int, texts: Sequence[str]) -> list[list[int]]:
    """The keys of each text's words, of the first ``MOST_WORDS`` of them."""
    return [keys for (keys,) in tx.execute(_WORDS, {"namespace_id": namespace_id, "texts": list(texts)})]


_COSINES = """
    WITH few AS MATERIALIZED (
        SELECT m.id, e.vector
        FROM (SELECT m.id FROM memories AS m WHERE {fits} LIMIT {most} + 1) AS m
        LEFT JOIN embeddings AS e ON e.memory_id = m.id AND {vectors}
    ), asked AS MATERIALIZED (
        SELECT place, CAST((CAST(:reals AS real[]))[(place - 1) * :dim + 1 : place * :dim] AS vector) AS vector
        FROM generate_series(1, :count) AS place
    )
    SELECT array_agg(few.id), array_agg(CAST(1 - (few.vector <=> asked.vector) AS real))
    FROM few CROSS JOIN asked
    WHERE (SELECT count(*) FROM few) <= {most}
    GROUP BY asked.place ORDER BY asked.place
    """
_WORDS = text(
    f"""
    WITH spoken AS MATERIALIZED (
        SELECT ('pg_catalog.' || language)::regconfig AS language FROM namespaces WHERE id = :namespace_id
    )
    SELECT ARRAY(
               SELECT hashtextextended(lexeme, :namespace_id)
               FROM unnest(search_terms(said, (SELECT language FROM spoken)))
               ORDER BY positions[1] LIMIT {MOST_WORDS}
           )
    FROM unnest(CAST(:texts AS text[])) WITH ORDINALITY AS asked (said, place)
    ORDER BY place
    """
)
# Of a word in more memories than a search counts, the newest are read. ``OFFSET 0`` makes Postgres look up each word by
# the index, and a join looks up each id by its hash: a long array would be compared element by element.
_POSTINGS = text(
    f"""
    SELECT asked.key, p.memory_id, p.frequency, p.length
    FROM unnest(CAST(:keys AS bigint[])) AS asked (key)
    CROSS JOIN LATERAL (
        SELECT memory_id, frequency, length FROM postings
        WHERE key = asked.key AND namespace_id = :namespace_id ORDER BY memory_id DESC LIMIT {MOST_COUNTED}
    ) AS p
    JOIN unnest(CAST(:ids AS bigint[])) AS few (id) ON few.id = p.memory_id
    """
)
