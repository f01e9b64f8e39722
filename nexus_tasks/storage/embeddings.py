"""Storing the vectors of memories, and recording gaps. A gap marks a namespace with memories that have no vector.

The table of gaps is the outbox of the job ``embed_memories``: each gap asks for a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Embedding, EmbeddingGap, Memory, Namespace
from nexus_tasks.storage.reals import Reals

PAGE_BYTES = 2_000_000  # the most text of a page, which is stored only when all its vectors are made

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
    """Store the vectors of memories. A new vector replaces the memory's stored vector of the same model.

    If ``vectors`` lacks the vector of a memory, a gap is recorded. The job ``embed_memories`` then makes the vector
    later.

    Args:
        model: the name of the embedding model.
        wordings: memory id → content of the memory.
        vectors: content of a memory → vector.
    """
    ids = [memory_id for memory_id in sorted(wordings) if wordings[memory_id] in vectors]
    if ids:
        import numpy as np

        placed = np.stack([vectors[wordings[memory_id]] for memory_id in ids])
        row = {"namespace_id": namespace_id, "model": model, "ids": ids, "reals": Reals(placed)}
        tx.execute(_STORE, row | {"dim": placed.shape[1]})
    if len(ids) < len(wordings):
        record_gap(tx, namespace_id)


def record_gap(tx: Transaction, namespace_id: int) -> None:
    """Record that memories of a namespace have no vector. This gap makes the job ``embed_memories`` wanted."""
    now = func.clock_timestamp()
    said = insert(EmbeddingGap).values(namespace_id=namespace_id, since=now)
    tx.execute(said.on_conflict_do_update(index_elements=["namespace_id"], set_={"since": now}))


def gap_since(tx: Transaction, namespace_id: int) -> datetime | None:
    """The time when the namespace's gap was last recorded, or ``None`` when the namespace has no gap."""
    return tx.scalar(select(EmbeddingGap.since).where(EmbeddingGap.namespace_id == namespace_id))


def close_gap(tx: Transaction, namespace_id: int, since: datetime) -> None:
    """Delete the namespace's gap if it was recorded at ``since``. A gap that was recorded later stays."""
    tx.execute(delete(EmbeddingGap).where(EmbeddingGap.namespace_id == namespace_id, EmbeddingGap.since == since))


def mark(tx: Transaction, namespace_id: int, *, dead: bool) -> None:
    """Delete a namespace's gap when its job gave up (``dead``), or record the gap again for a retry of the job."""
    if dead:
        tx.execute(delete(EmbeddingGap).where(EmbeddingGap.namespace_id == namespace_id))
    else:
        record_gap(tx, namespace_id)


def wanted(tx: Transaction, after: int, limit: int) -> Sequence[tuple[int, str]]:
    """At most ``limit`` namespaces with a gap, as (namespace id, name), in the order of the ids.

    Args:
        after: only namespaces whose id is above this id.
    """
    query = (
        select(Namespace.id, Namespace.name)
        .join(EmbeddingGap, EmbeddingGap.namespace_id == Namespace.id)
        .where(Namespace.id > after)
        .order_by(Namespace.id)
        .limit(limit)
    )
    return [(int(namespace_id), str(name)) for namespace_id, name in tx.execute(query)]


def record_all_gaps(tx: Transaction, model: str) -> Sequence[str]:
    """Record a gap for each namespace that has a memory without a vector of ``model``. Returns the namespaces' names.

    The query reads every memory. Call this function only after a change of the model, or once a day.
    """
    lacking = exists().where(_lacks(model), Memory.namespace_id == Namespace.id)
    found = tx.execute(select(Namespace.id, Namespace.name).where(lacking).order_by(Namespace.id)).all()
    for namespace_id, _ in found:
        record_gap(tx, namespace_id)
    return [str(name) for _, name in found]


def to_embed(tx: Transaction, namespace_id: int, model: str, *, before: int | None, limit: int) -> dict[int, str]:
    """The newest memories that ``embed_memories`` has to embed, as id → content.

    They are at most ``limit`` memories, with at most 2 MB of text together. A message with a wanted derivation is left
    out, because the derivation embeds the message.

    Args:
        before: only memories whose id is below this id. ``None`` means all memories.
    """
    found = (
        select(Memory.id, Memory.content, func.octet_length(Memory.content).label("size"))
        .where(Memory.namespace_id == namespace_id, _lacks(model))
        .order_by(Memory.id.desc())
        .limit(limit)
    )
    if before is not None:
        found = found.where(Memory.id < before)
    page = found.subquery()
    newest = page.c.id.desc()
    sized = select(
        page.c.id,
        page.c.content,
        func.row_number().over(order_by=newest).label("place"),
        func.sum(page.c.size).over(order_by=newest).label("bytes"),
    ).subquery()
    fits = (sized.c.bytes <= PAGE_BYTES) | (sized.c.place == 1)
    query = select(sized.c.id, sized.c.content).where(fits).order_by(sized.c.id.desc())
    return {int(memory_id): str(content) for memory_id, content in tx.execute(query)}


def count_to_embed(tx: Transaction, namespace_id: int, model: str) -> int:
    """The number of memories that :func:`to_embed` would find without a limit."""
    return int(tx.scalar(select(func.count()).where(Memory.namespace_id == namespace_id, _lacks(model))) or 0)


def lock_unchanged(tx: Transaction, wordings: Mapping[int, str]) -> dict[int, str]:
    """Lock the memories of ``wordings`` (memory id → content) until the transaction ends.

    Returns the entries whose memory still has this content.
    """
    query = select(Memory.id, Memory.content).where(Memory.id.in_(wordings)).order_by(Memory.id)
    rows = tx.execute(query.with_for_update(read=True, of=Memory))
    return {int(i): str(content) for i, content in rows if wordings[i] == content}


def _lacks(model: str) -> ColumnElement[bool]:
    """The SQL condition for memories without a vector, except messages that a wanted derivation will embed.

    A superseded memory meets the condition too. It needs a vector, because a search with ``as_of`` finds it.
    """
    has = exists().where(Embedding.memory_id == Memory.id, Embedding.model == model)
    to_be_derived = exists().where(Derivation.memory_id == Memory.id, Derivation.state == "wanted")
    return ~has & ~to_be_derived


def delete_other_models(tx: Transaction, model: str, limit: int, *, namespace_id: int | None) -> int:
    """Delete up to ``limit`` vectors of models other than ``model``, in one namespace or in all.

    A memory without a vector of ``model`` keeps its other vectors. Returns the number deleted.
    """
    present = aliased(Embedding)
    replaced = exists().where(present.memory_id == Embedding.memory_id, present.model == model)
    others = select(Embedding.memory_id, Embedding.model).where(_of_others(model, namespace_id), replaced)
    some = others.limit(limit).cte("some")
    gone = delete(Embedding).where(Embedding.memory_id == some.c.memory_id, Embedding.model == some.c.model)
    return len(tx.execute(gone.returning(Embedding.memory_id)).all())


def count_of_other_models(tx: Transaction, model: str, *, namespace_id: int | None) -> int:
    """The number of vectors of models other than ``model``, in one namespace or in all."""
    found = select(func.count()).select_from(Embedding).where(_of_others(model, namespace_id))
    return int(tx.scalar(found) or 0)


def _of_others(model: str, namespace_id: int | None) -> ColumnElement[bool]:
    other = Embedding.model != model
    return other if namespace_id is None else other & (Embedding.namespace_id == namespace_id)
