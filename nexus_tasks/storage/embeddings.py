"""Vectors, stored per embedding model beside the memories."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Embedding, Memory


def store(
    tx: Transaction, namespace_id: int, model: str, memory_ids: Sequence[int], vectors: Vectors | Sequence[Vectors]
) -> None:
    """Store (or replace, when a wording changed) the vectors of memories; of no memories, nothing."""
    if not memory_ids:
        return
    placed = dict(zip(memory_ids, vectors, strict=True))
    rows = [
        {"memory_id": memory_id, "model": model, "namespace_id": namespace_id, "vector": placed[memory_id]}
        for memory_id in sorted(placed)
    ]
    insert_rows(tx, Embedding, rows, on_conflict="(memory_id, model) DO UPDATE SET vector = excluded.vector")


def missing(tx: Transaction, namespace_id: int, model: str) -> int:
    """How many active memories of a namespace have no vector of ``model``: un-derived messages, usually."""
    has = (
        select(Embedding.memory_id)
        .where(Embedding.memory_id == Memory.id, Embedding.model == model)
        .correlate(Memory)
        .exists()
    )
    query = select(func.count()).where(
        Memory.namespace_id == namespace_id, Memory.valid_to.is_(None), Memory.archived_at.is_(None), ~has
    )
    return int(tx.scalar(query) or 0)
