"""Reading memories: by id, by filter, as candidates of a search, with their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select, text

from nexus_tasks.embeddings.base import Vectors
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Embedding, Evidence, Memory, PerspectiveRow, Session
from nexus_tasks.types import Citation


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which memories of a namespace a reader means; ``as_of`` reads the past."""

    namespace_id: int
    observer: str | None = None
    subject: str | None = None
    session_key: str | None = None
    levels: tuple[str, ...] | None = None
    as_of: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A memory with the names that its ids stand for."""

    memory: Memory
    session_key: str | None
    observer: str | None
    subject: str | None


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [Memory.namespace_id == wanted.namespace_id]
    if wanted.as_of is None:
        conditions.append(Memory.valid_to.is_(None))
        if wanted.levels is None:
            conditions.append(Memory.archived_at.is_(None))
    else:
        conditions.append(func.coalesce(Memory.valid_from, Memory.occurred_at) <= wanted.as_of)
        conditions.append(Memory.valid_to.is_(None) | (Memory.valid_to > wanted.as_of))
    if wanted.levels is not None:
        conditions.append(Memory.level.in_(wanted.levels))
    # A message belongs to no perspective; it is about whoever wrote it, and every observer may have heard it.
    if wanted.observer is not None:
        conditions.append(Memory.perspective_id.is_(None) | (PerspectiveRow.observer == wanted.observer))
    if wanted.subject is not None:
        conditions.append(func.coalesce(PerspectiveRow.subject, Memory.author, "") == wanted.subject)
    if wanted.session_key is not None:
        conditions.append(Session.session_key == wanted.session_key)
    return conditions


def _base(*columns: Any) -> Any:
    return (
        select(*columns)
        .select_from(Memory)
        .outerjoin(PerspectiveRow, PerspectiveRow.id == Memory.perspective_id)
        .outerjoin(Session, Session.id == Memory.session_id)
    )


_COLUMNS = (Memory, Session.session_key, PerspectiveRow.observer, PerspectiveRow.subject)


def _rows(tx: Transaction, query: Any) -> list[Row]:
    return [
        Row(memory=memory, session_key=key, observer=observer, subject=subject)
        for memory, key, observer, subject in tx.execute(query)
    ]


def every(tx: Transaction, wanted: Filter, limit: int, *, newest: bool = True) -> list[Row]:
    """Memories that fit the filter, newest first (or oldest)."""
    order = (Memory.occurred_at.desc(), Memory.id.desc()) if newest else (Memory.occurred_at, Memory.id)
    return _rows(tx, _base(*_COLUMNS).where(*_conditions(wanted)).order_by(*order).limit(limit))


def get(tx: Transaction, namespace_id: int, memory_id: int) -> Row | None:
    """One memory, whatever its state, or ``None``."""
    query = _base(*_COLUMNS).where(Memory.namespace_id == namespace_id, Memory.id == memory_id)
    return next(iter(_rows(tx, query)), None)


def by_id(tx: Transaction, namespace_id: int, memory_ids: Sequence[int]) -> dict[int, Row]:
    """The memories of these ids, whatever their state."""
    query = _base(*_COLUMNS).where(Memory.namespace_id == namespace_id, Memory.id.in_(memory_ids))
    return {row.memory.id: row for row in _rows(tx, query)}


def by_words(tx: Transaction, wanted: Filter, words: Sequence[str], limit: int) -> list[Row]:
    """Memories with any of ``words``, those with most and closest ones first."""
    query = func.to_tsquery("english", " | ".join(map(_lexeme, words)))
    ranked = func.ts_rank_cd(Memory.tsv, query)
    return _rows(
        tx,
        _base(*_COLUMNS)
        .where(*_conditions(wanted), Memory.tsv.op("@@")(query))
        .order_by(ranked.desc(), Memory.id)
        .limit(limit),
    )


def _lexeme(word: str) -> str:
    """A word as ``to_tsquery`` takes it: quoted, so that "10:30" is no operator and is parsed as the texts were."""
    return "'" + word.replace("\\", "").replace("'", "''") + "'"


def by_vector(tx: Transaction, wanted: Filter, model: str, vector: Vectors, limit: int) -> list[tuple[Row, float]]:
    """The nearest memories under an embedding model with their cosine similarities."""
    distance = Embedding.vector.cosine_distance(vector)
    query = (
        _base(*_COLUMNS, (1 - distance).label("similarity"))
        .join(Embedding, (Embedding.memory_id == Memory.id) & (Embedding.model == model))
        .where(*_conditions(wanted))
        .order_by(distance, Memory.id)
        .limit(limit)
    )
    return [
        (Row(memory=memory, session_key=key, observer=observer, subject=subject), float(similarity))
        for memory, key, observer, subject, similarity in tx.execute(query)
    ]


def frequencies(tx: Transaction, namespace_id: int, words: Sequence[str]) -> tuple[int, float, dict[str, int]]:
    """Memories in a namespace, their mean length in tokens, and how many have each of ``words``."""
    totals = select(func.count(), func.coalesce(func.avg(Memory.tokens), 1)).where(Memory.namespace_id == namespace_id)
    total, length = tx.execute(totals).one()
    counted = tx.execute(
        text(
            """
            SELECT word, (SELECT count(*) FROM memories
                          WHERE namespace_id = :namespace AND tsv @@ to_tsquery('english', word))
            FROM unnest(CAST(:words AS text[])) AS word
            """
        ),
        {"namespace": namespace_id, "words": [_lexeme(word) for word in words]},
    )
    found = {lexeme: int(n) for lexeme, n in counted}
    return int(total), float(length), {word: found[_lexeme(word)] for word in words}


def evidence(tx: Transaction, memory_ids: Sequence[int]) -> dict[int, tuple[Citation, ...]]:
    """What each memory rests on."""
    query = (
        select(Evidence.memory_id, Evidence.source_id, Memory.external_id, Evidence.role)
        .join(Memory, Memory.id == Evidence.source_id)
        .where(Evidence.memory_id.in_(memory_ids))
        .order_by(Evidence.memory_id, Evidence.source_id, Evidence.role)
    )
    found: dict[int, list[Citation]] = {}
    for memory_id, source, external_id, role in tx.execute(query):
        found.setdefault(memory_id, []).append(Citation(id=source, external_id=external_id, role=role))
    return {memory_id: tuple(edges) for memory_id, edges in found.items()}


def neighbours(tx: Transaction, memory_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of the given messages that directly follow each other in their session."""
    rows = tx.execute(
        text(
            """
            SELECT a.id, b.id FROM memories a
            JOIN memories b ON b.namespace_id = a.namespace_id AND b.session_id = a.session_id AND b.seq = a.seq + 1
                           AND b.level = 'raw'
            WHERE a.id = ANY(:ids) AND b.id = ANY(:ids) AND a.level = 'raw'
            """
        ),
        {"ids": list(memory_ids)},
    )
    return [(a, b) for a, b in rows]


def counts(tx: Transaction, namespace_id: int) -> Mapping[str, int]:
    """Active memories by level."""
    query = (
        select(Memory.level, func.count())
        .where(Memory.namespace_id == namespace_id, Memory.valid_to.is_(None))
        .group_by(Memory.level)
    )
    return dict(tx.execute(query).all())


def superseded_by(tx: Transaction, memory_id: int) -> list[int]:
    """Ids of the memories that ``memory_id`` took the place of."""
    return list(tx.scalars(select(Memory.id).where(Memory.superseded_by == memory_id).order_by(Memory.id)))


def resting_on(tx: Transaction, memory_id: int) -> list[dict[str, Any]]:
    """The memories that rest on ``memory_id``, as ``{"id", "role"}``."""
    query = (
        select(Evidence.memory_id, Evidence.role).where(Evidence.source_id == memory_id).order_by(Evidence.memory_id)
    )
    return [{"id": found, "role": role} for found, role in tx.execute(query)]


def cited(edge: Citation) -> dict[str, Any]:
    """An evidence edge as JSON."""
    return {"id": edge.id, "external_id": edge.external_id, "role": edge.role}


def summary(row: Row) -> dict[str, Any]:
    """A memory as the command line shows it."""
    memory = row.memory
    return {
        "id": memory.id,
        "external_id": memory.external_id,
        "level": memory.level,
        "content": memory.content,
        "author": memory.author,
        "role": memory.role,
        "observer": row.observer,
        "subject": row.subject,
        "session_key": row.session_key,
        "category": memory.category,
        "labels": memory.labels,
        "confidence": memory.confidence,
        "times_reinforced": memory.times_reinforced,
        "occurred_at": memory.occurred_at,
        "stored_at": memory.created_at,
        "valid_from": memory.valid_from,
        "valid_to": memory.valid_to,
        "superseded_by": memory.superseded_by,
        "made_by": memory.made_by,
        "reflection": memory.reflection_id,
    }
