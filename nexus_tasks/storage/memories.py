"""Reading memories: by id, by filter, with their evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import aliased

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow, Session
from nexus_tasks.storage.searching.scope import Filter, scope
from nexus_tasks.types import Citation


@dataclass(frozen=True, kw_only=True)
class Row:
    """A memory with the names that its ids stand for."""

    memory: Memory
    session_key: str | None
    observer: str | None
    subject: str | None


_M = aliased(Memory, name="m")  # as a scope's conditions name it
_ROWS = (
    select(_M, Session.session_key, PerspectiveRow.observer, PerspectiveRow.subject)
    .select_from(_M)
    .outerjoin(PerspectiveRow, PerspectiveRow.id == _M.perspective_id)
    .outerjoin(Session, Session.id == _M.session_id)
)


# Statements of every job are text with arrays: an IN is another statement for every number of ids.
_HOLD = text("SELECT id FROM memories WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR KEY SHARE")


def hold(tx: Transaction, memory_ids: Collection[int]) -> bool:
    """Keep memories from being erased until the transaction ends; ``False`` when one of them is gone already."""
    if not memory_ids:
        return True
    return len(tx.scalars(_HOLD, {"ids": list(memory_ids)}).all()) == len(memory_ids)


def _rows(tx: Transaction, query: Any, values: Mapping[str, Any] | None = None) -> list[Row]:
    return [
        Row(memory=memory, session_key=key, observer=observer, subject=subject)
        for memory, key, observer, subject in tx.execute(query, values)
    ]


def every(tx: Transaction, wanted: Filter, limit: int) -> list[Row]:
    """Memories that fit the filter, newest first."""
    within = scope(wanted)
    query = _ROWS.where(text(within.both)).order_by(_M.occurred_at.desc(), _M.id.desc()).limit(limit)
    return _rows(tx, query, within.values)


def get(tx: Transaction, namespace_id: int, memory_id: int) -> Row | None:
    """One memory, whatever its state, or ``None``."""
    query = _ROWS.where(_M.namespace_id == namespace_id, _M.id == memory_id)
    return next(iter(_rows(tx, query)), None)


def by_id(tx: Transaction, namespace_id: int, memory_ids: Sequence[int]) -> dict[int, Row]:
    """The memories of these ids, whatever their state."""
    query = _ROWS.where(_M.namespace_id == namespace_id, _M.id.in_(memory_ids))
    return {row.memory.id: row for row in _rows(tx, query)}


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
