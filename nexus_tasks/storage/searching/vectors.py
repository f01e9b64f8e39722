"""Vectors in SQL: compared as half floats, which halves an index and costs no recall (measured on LoCoMo)."""

from __future__ import annotations

from nexus_tasks.embeddings.base import Vectors

MOST_DIMENSIONS = 4_000  # that an HNSW index of half floats takes


def as_text(vector: Vectors) -> str:
    """A vector as pgvector reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def owned(namespace_id: int, model: str) -> str:
    """The vectors ``e`` of a namespace and model; with the values in the text, so that a partial index serves it."""
    return f"e.namespace_id = {int(namespace_id)} AND e.model = {_quoted(model)}"


def distance(dimensions: int) -> str:
    """The cosine distance of ``e.vector`` to ``:vector``, in the words of the index's own expression."""
    return f"CAST(e.vector AS halfvec({int(dimensions)})) <=> CAST(CAST(:vector AS text) AS halfvec({int(dimensions)}))"


def hnsw(namespace_id: int, model: str, dimensions: int) -> str:
    """The definition of the index that serves :func:`owned` and :func:`distance`, behind the table's name."""
    return (
        f"USING hnsw (CAST(vector AS halfvec({int(dimensions)})) halfvec_cosine_ops)"
        f" WHERE namespace_id = {int(namespace_id)} AND model = {_quoted(model)}"
    )


def _quoted(model: str) -> str:
    return "'" + model.replace("'", "''").replace(":", "\\:") + "'"  # a colon would begin a parameter
