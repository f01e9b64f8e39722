"""The SQL that compares vectors.

An HNSW index compares half floats (16 bits a number), because it is then half as large. On the benchmark LoCoMo both
have the same recall. Without an index, the stored floats are compared: to make half floats of them takes longer than
the comparison.
"""

from __future__ import annotations

import zlib

from nexus_tasks.embeddings.base import Vectors

MOST_DIMENSIONS = 4_000  # pgvector's limit for an HNSW index of half floats


def as_text(vector: Vectors) -> str:
    """Write a vector in the text form of pgvector."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def namespace_vectors(namespace_id: int, model: str) -> str:
    """The SQL condition that a row ``e`` of ``embeddings`` belongs to a namespace and a model.

    The values are literals in the SQL text, because Postgres uses a partial index only for a condition with literals.
    """
    return f"e.namespace_id = {int(namespace_id)} AND e.model = {_quoted(model)}"


def distance(dimensions: int, *, indexed: bool) -> str:
    """The SQL of the cosine distance between ``e.vector`` and ``:vector``.

    Args:
        indexed: whether the HNSW index orders the rows. Postgres uses the index only when the cast of ``e.vector`` is
            the one of the index's definition, and ``:vector`` is in no subquery. Elsewhere a subquery keeps Postgres
            from reading the text of ``:vector`` again for each row: 384 numbers take about 10 µs.
    """
    if not indexed:
        return f"e.vector <=> (SELECT CAST(:vector AS vector({int(dimensions)})))"
    kind = f"halfvec({int(dimensions)})"
    return f"CAST(e.vector AS {kind}) <=> CAST(:vector AS {kind})"


def index_name(namespace_id: int, model: str) -> str:
    """The name of the HNSW index of a namespace's vectors of a model."""
    return f"ix_vectors_{int(namespace_id)}_{zlib.crc32(model.encode()):08x}"


def hnsw_definition(namespace_id: int, model: str, dimensions: int) -> str:
    """The part of CREATE INDEX after the table's name, for the HNSW index of a namespace's vectors of a model.

    Postgres uses the index for queries with :func:`namespace_vectors` and :func:`distance`.
    """
    return (
        f"USING hnsw (CAST(vector AS halfvec({int(dimensions)})) halfvec_cosine_ops)"
        f" WHERE namespace_id = {int(namespace_id)} AND model = {_quoted(model)}"
    )


def _quoted(model: str) -> str:
    return "'" + model.replace("'", "''").replace(":", "\\:") + "'"  # SQLAlchemy takes a plain colon for a parameter
