"""SQL that compares vectors as half floats (16 bits per number).

An index of half floats is half as large as an index of floats. The recall on the benchmark LoCoMo is the same.
"""

from __future__ import annotations

from nexus_tasks.embeddings.base import Vectors

MOST_DIMENSIONS = 4_000  # pgvector's limit for an HNSW index of half floats


def as_text(vector: Vectors) -> str:
    """A vector in the text form of pgvector."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def namespace_vectors(namespace_id: int, model: str) -> str:
    """The condition for vectors ``e`` of a namespace and model.

    The values are literals, because Postgres uses a partial index only for a condition with literals.
    """
    return f"e.namespace_id = {int(namespace_id)} AND e.model = {_quoted(model)}"


def distance(dimensions: int) -> str:
    """The cosine distance of ``e.vector`` to ``:vector``, written as in the index's expression."""
    return f"CAST(e.vector AS halfvec({int(dimensions)})) <=> CAST(CAST(:vector AS text) AS halfvec({int(dimensions)}))"


def hnsw_definition(namespace_id: int, model: str, dimensions: int) -> str:
    """The definition, after the table's name, of the index for :func:`namespace_vectors` and :func:`distance`."""
    return (
        f"USING hnsw (CAST(vector AS halfvec({int(dimensions)})) halfvec_cosine_ops)"
        f" WHERE namespace_id = {int(namespace_id)} AND model = {_quoted(model)}"
    )


def _quoted(model: str) -> str:
    return "'" + model.replace("'", "''").replace(":", "\\:") + "'"  # a colon would begin a parameter
