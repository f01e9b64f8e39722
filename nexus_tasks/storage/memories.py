"""Reading memories by id or by filter, reading the evidence of memories, and counting memories by level."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, NamedTuple, cast

from sqlalchemy import Row, func, select, text

from nexus_tasks import limits
from nexus_tasks.event_time import local
from nexus_tasks.storage import answer_bytes
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Evidence, Memory
from nexus_tasks.storage.searching.scope import Filter, build_scope
from nexus_tasks.types import LEVELS, Citation, Level, MemoryInfo, Role, SourcedFact, SupportedMemory, standing_named

_ROWS = """
    SELECT m.id, m.external_id, m.level, m.content, m.author, m.role, m.category, m.labels, m.confidence,
           m.times_reinforced, m.occurred_at, m.event_from, m.event_to, m.claimed_at, m.time_zone, m.created_at,
           m.valid_from, m.valid_to, m.superseded_by, m.expires_at, m.erase_expired, m.pinned_at, m.made_by, m.standing,
           m.reflection_id, m.data, sessions.session_key, perspectives.observer, perspectives.subject {more}
    FROM memories AS m
    LEFT JOIN perspectives ON perspectives.id = m.perspective_id
    LEFT JOIN sessions ON sessions.id = m.session_id
"""


# The ids are one array parameter, so the statement has the same text for any number of ids. With IN, psycopg and
# Postgres would have to parse another text for each number of ids.
_LOCK_EXISTING = text("SELECT id FROM memories WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR KEY SHARE")


def lock_existing(tx: Transaction, memory_ids: Collection[int]) -> bool:
    """Lock memories until the transaction ends, so that no other transaction erases them.

    Returns ``False`` when one of the memories does not exist.
    """
    if not memory_ids:
        return True
    return len(tx.scalars(_LOCK_EXISTING, {"ids": list(memory_ids)}).all()) == len(memory_ids)


def _info(memory: Row[Any]) -> MemoryInfo:
    return MemoryInfo(
        id=memory.id,
        external_id=memory.external_id,
        level=cast(Level, memory.level),
        content=memory.content,
        author=memory.author,
        role=cast(Role | None, memory.role),
        observer=memory.observer,
        subject=memory.subject,
        session_key=memory.session_key,
        category=memory.category,
        labels=tuple(memory.labels),
        confidence=memory.confidence,
        times_reinforced=memory.times_reinforced,
        occurred_at=memory.occurred_at,
        event_from=local(memory.event_from, memory.time_zone),
        event_to=local(memory.event_to, memory.time_zone),
        claimed_at=memory.claimed_at,
        time_zone=memory.time_zone or "UTC",
        stored_at=memory.created_at,
        valid_from=memory.valid_from,
        valid_to=memory.valid_to,
        superseded_by=memory.superseded_by,
        expires_at=memory.expires_at,
        erase_expired=memory.erase_expired,
        pinned=memory.pinned_at is not None,
        made_by=memory.made_by,
        standing=standing_named(memory.standing),
        reflection=memory.reflection_id,
        data=None if memory.data is None else json.loads(memory.data),
    )


def matching(tx: Transaction, wanted: Filter, limit: int, offset: int = 0) -> list[MemoryInfo]:
    """The newest memories that pass the filter, at most ``limit``, newest first, without the first ``offset``.

    Raises:
        InvalidInput: the texts are too large for an answer (see ``answer_bytes``).
    """
    within = build_scope(wanted)
    order = "ORDER BY m.occurred_at DESC, m.id DESC LIMIT :most OFFSET :skip"
    rows = f"{_ROWS.format(more='')} WHERE {within.both} {order}"
    return [_info(row) for row in _read(tx, rows, {**within.values, "most": limit, "skip": offset})]


class FactLine(NamedTuple):
    """What a line of ``facts.md`` needs of a fact."""

    id: int
    subject: str | None
    content: str
    category: str | None
    confidence: float
    occurred_at: datetime


def fact_lines(tx: Transaction, namespace_id: int, limit: int) -> list[FactLine]:
    """The newest facts that are valid now, at most ``limit``, newest first."""
    within = build_scope(Filter(namespace_id=namespace_id, levels=("explicit",)))
    rows = tx.execute(
        text(_FACT_LINES.format(within=within.both)),
        {**within.values, "most": limit},
        execution_options={"yield_per": 1_000},
    )
    return [FactLine(*row) for row in rows]


_FACT_LINES = """
    SELECT m.id, perspectives.subject, m.content, m.category, m.confidence, m.occurred_at
    FROM memories AS m LEFT JOIN perspectives ON perspectives.id = m.perspective_id
    WHERE {within} ORDER BY m.occurred_at DESC, m.id DESC LIMIT :most
"""


def fact_lines_of(tx: Transaction, namespace_id: int, ids: Collection[int]) -> list[FactLine]:
    """The facts with these ids, also those that hold no longer."""
    within = "m.namespace_id = :namespace_id AND m.level = 'explicit' AND m.id = ANY(:ids)"
    values = {"namespace_id": namespace_id, "ids": list(ids), "most": len(ids)}
    return [FactLine(*row) for row in tx.execute(text(_FACT_LINES.format(within=within)), values)]


def find(tx: Transaction, namespace_id: int, memory_id: int) -> MemoryInfo | None:
    """The memory with the id ``memory_id``, or ``None``. The memory may be superseded or archived."""
    row = tx.execute(_ONE, {"namespace_id": namespace_id, "id": memory_id}).first()
    return None if row is None else _info(row)


_ONE = text(f"{_ROWS.format(more='')} WHERE m.namespace_id = :namespace_id AND m.id = :id")
_FACTS = (
    _ROWS.format(more=", edges.sources")
    + f"""
    JOIN (
        SELECT e.memory_id,
               (array_agg(DISTINCT e.source_id ORDER BY e.source_id))[1:{limits.HIT_EVIDENCE}] AS sources
        FROM evidence AS e JOIN memories AS said ON said.id = e.source_id
        WHERE said.namespace_id = (SELECT namespace_id FROM sessions WHERE id = :session_id)
          AND said.session_id = :session_id AND said.level = 'raw' AND said.seq > :after AND said.seq < :before
        GROUP BY e.memory_id
    ) AS edges ON edges.memory_id = m.id
    WHERE m.level = 'explicit'
      AND (:superseded OR m.valid_to IS NULL AND (m.expires_at IS NULL OR m.expires_at > now()))
    ORDER BY edges.sources, m.id LIMIT :limit OFFSET :offset
    """
)


def facts_of_session(
    tx: Transaction, session_id: int, *, after: int, before: int, limit: int, offset: int, superseded: bool
) -> list[SourcedFact]:
    """A page of the facts that rest on a session's messages with ``after < seq < before``, in their order.

    Raises:
        InvalidInput: the texts are too large for an answer (see ``answer_bytes``).
    """
    within = {"session_id": session_id, "after": after, "before": before, "superseded": superseded}
    found = [(_info(row), row.sources) for row in _read(tx, _FACTS, {**within, "limit": limit, "offset": offset})]
    return [
        SourcedFact(**{field.name: getattr(fact, field.name) for field in fields(fact)}, sources=tuple(said))
        for fact, said in found
    ]


def _read(tx: Transaction, rows: str, values: Mapping[str, Any]) -> Sequence[Row[Any]]:
    return answer_bytes.checked(tx.execute(text(answer_bytes.all_or_first(rows, answer_bytes.MEMORY)), values).all())


def contents(tx: Transaction, namespace_id: int, memory_ids: Collection[int], *, characters: int) -> dict[int, str]:
    """The first ``characters`` characters of the memories with these ids: memory id → text.

    Ids of other namespaces are left out.
    """
    beginning = func.left(Memory.content, characters)
    query = select(Memory.id, beginning).where(Memory.namespace_id == namespace_id, among(Memory.id, memory_ids))
    return {row[0]: row[1] for row in tx.execute(query)}


def evidence_of(tx: Transaction, memory_id: int, limit: int) -> tuple[tuple[Citation, ...], int]:
    """The earliest sources of a memory, at most ``limit``, and the number of all."""
    query = (
        select(Evidence.source_id, Memory.external_id, Evidence.role, func.count().over())
        .join(Memory, Memory.id == Evidence.source_id)
        .where(Evidence.memory_id == memory_id)
        .order_by(Evidence.source_id, Evidence.role)
        .limit(limit)
    )
    rows = tx.execute(query).all()
    found = tuple(Citation(id=source, external_id=external_id, role=role) for source, external_id, role, _ in rows)
    return found, rows[0][3] if rows else 0


def count_by_level(tx: Transaction, namespace_id: int) -> dict[str, int]:
    """The number of valid memories of each level: neither superseded nor expired. Without memories it is 0."""
    lasts = Memory.expires_at.is_(None) | (Memory.expires_at > func.now())
    query = (
        select(Memory.level, func.count())
        .where(Memory.namespace_id == namespace_id, Memory.valid_to.is_(None), lasts)
        .group_by(Memory.level)
    )
    return dict.fromkeys(LEVELS, 0) | dict(tx.execute(query).all())


def ids_superseded_by(tx: Transaction, memory_id: int, limit: int) -> list[int]:
    """The ids of the first memories that the memory ``memory_id`` superseded, at most ``limit``."""
    query = select(Memory.id).where(Memory.superseded_by == memory_id).order_by(Memory.id).limit(limit)
    return list(tx.scalars(query))


def resting_on(tx: Transaction, memory_id: int, limit: int) -> list[SupportedMemory]:
    """The first memories that have the memory ``memory_id`` as a source, at most ``limit``."""
    query = select(Evidence.memory_id, Evidence.role).where(Evidence.source_id == memory_id)
    query = query.order_by(Evidence.memory_id).limit(limit)
    return [SupportedMemory(id=found, role=role) for found, role in tx.execute(query)]
