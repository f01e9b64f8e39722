"""Vectors, stored per embedding model beside the memories, and the namespaces where some are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
from sqlalchemy import ColumnElement, delete, exists, func, select, text
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Embedding, EmbeddingGap, Memory, Namespace
from nexus_tasks.storage.reals import Reals

_STORE = text(
    """
    INSERT INTO embeddings (memory_id, model, namespace_id, vector)
    SELECT id, :model, :namespace_id,
           CAST((CAST(:reals AS real[]))[(position - 1) * :dim + 1 : position * :dim] AS vector)
    FROM unnest(CAST(:ids AS bigint[])) WITH ORDINALITY AS r (id, position)
    ON CONFLICT (memory_id, model) DO UPDATE SET vector = excluded.vector
    """
)


def store(
    tx: Transaction, namespace_id: int, model: str, wordings: Mapping[int, str], vectors: Mapping[str, Vectors]
) -> None:
    """Store (or replace, when a wording changed) the vectors of memories, given as id → wording.

    A wording that has none leaves a gap behind, which a job fills: a missing vector never blocks a fact.
    """
    ids = [memory_id for memory_id in sorted(wordings) if wordings[memory_id] in vectors]
    if ids:
        placed = np.stack([vectors[wordings[memory_id]] for memory_id in ids])
        row = {"namespace_id": namespace_id, "model": model, "ids": ids, "reals": Reals(placed)}
        tx.execute(_STORE, row | {"dim": placed.shape[1]})
    if len(ids) < len(wordings):
        leave_gap(tx, namespace_id)


def leave_gap(tx: Transaction, namespace_id: int) -> None:
    """Say that memories of a namespace lack their vectors: the outbox of ``embed_memories``."""
    now = func.clock_timestamp()
    said = insert(EmbeddingGap).values(namespace_id=namespace_id, since=now)
    tx.execute(said.on_conflict_do_update(index_elements=["namespace_id"], set_={"since": now}))


def gap(tx: Transaction, namespace_id: int) -> datetime | None:
    """When a gap was last left in a namespace, or ``None``."""
    return tx.scalar(select(EmbeddingGap.since).where(EmbeddingGap.namespace_id == namespace_id))


def close_gap(tx: Transaction, namespace_id: int, since: datetime) -> None:
    """The gap that was seen is filled; one that was left after ``since`` stays."""
    tx.execute(delete(EmbeddingGap).where(EmbeddingGap.namespace_id == namespace_id, EmbeddingGap.since == since))


def mark(tx: Transaction, namespace_id: int, *, dead: bool) -> None:
    """Take a namespace's gap out of the outbox with its dead letter, or put it back when that is retried."""
    if dead:
        tx.execute(delete(EmbeddingGap).where(EmbeddingGap.namespace_id == namespace_id))
    else:
        leave_gap(tx, namespace_id)


def gaps(tx: Transaction, after: int, limit: int) -> Sequence[tuple[int, str]]:
    """Namespaces with gaps, as (id, name), by id."""
    query = (
        select(Namespace.id, Namespace.name)
        .join(EmbeddingGap, EmbeddingGap.namespace_id == Namespace.id)
        .where(Namespace.id > after)
        .order_by(Namespace.id)
        .limit(limit)
    )
    return [(int(namespace_id), str(name)) for namespace_id, name in tx.execute(query)]


def find_gaps(tx: Transaction, model: str) -> Sequence[str]:
    """Leave a gap in each namespace that has a memory without a vector of ``model``; returns their names.

    Looks at every memory: for now and then, as when the model was changed.
    """
    lacking = exists().where(_lacks(model), Memory.namespace_id == Namespace.id)
    found = tx.execute(select(Namespace.id, Namespace.name).where(lacking).order_by(Namespace.id)).all()
    for namespace_id, _ in found:
        leave_gap(tx, namespace_id)
    return [str(name) for _, name in found]


def lacking(tx: Transaction, namespace_id: int, model: str, *, before: int | None, limit: int) -> dict[int, str]:
    """The newest memories that lack a vector of ``model``, id → wording; with ``before`` only those of smaller ids."""
    query = (
        select(Memory.id, Memory.content)
        .where(Memory.namespace_id == namespace_id, _lacks(model))
        .order_by(Memory.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(Memory.id < before)
    return {int(memory_id): str(content) for memory_id, content in tx.execute(query)}


def count_lacking(tx: Transaction, namespace_id: int, model: str) -> int:
    """How many memories :func:`lacking` would find."""
    return int(tx.scalar(select(func.count()).where(Memory.namespace_id == namespace_id, _lacks(model))) or 0)


def unchanged(tx: Transaction, wordings: Mapping[int, str]) -> dict[int, str]:
    """Those of ``wordings`` (memory id → wording) that still read so, locked until the transaction ends."""
    query = select(Memory.id, Memory.content).where(Memory.id.in_(wordings)).order_by(Memory.id)
    rows = tx.execute(query.with_for_update(read=True, of=Memory))
    return {int(i): str(content) for i, content in rows if wordings[i] == content}


def _lacks(model: str) -> ColumnElement[bool]:
    """Memories without a vector (superseded ones too: the past is searched), but for those a derivation will embed."""
    has = exists().where(Embedding.memory_id == Memory.id, Embedding.model == model)
    wanted = exists().where(Derivation.memory_id == Memory.id, Derivation.state == "wanted")
    return ~has & ~wanted


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


def drop_others(tx: Transaction, model: str, limit: int) -> int:
    """Delete up to ``limit`` vectors of other models than ``model``; returns how many went."""
    some = select(Embedding.memory_id, Embedding.model).where(Embedding.model != model).limit(limit).cte("some")
    gone = delete(Embedding).where(Embedding.memory_id == some.c.memory_id, Embedding.model == some.c.model)
    return len(tx.execute(gone.returning(Embedding.memory_id)).all())
