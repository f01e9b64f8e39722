"""Reading search hits: memories with the names of their sessions and perspectives, and their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.types import Citation, Level


class Hit(NamedTuple):
    """A memory that a search returns."""

    id: int
    external_id: str | None
    level: Level
    content: str
    confidence: float
    times_reinforced: int
    occurred_at: datetime
    event_from: datetime | None
    event_to: datetime | None
    claimed_at: datetime | None
    time_zone: str | None
    standing: int | None
    validated_at: datetime
    session_key: str | None
    observer: str | None
    subject: str | None
    evidence: tuple[Citation, ...]


_HITS = text(
    """
    SELECT m.id, m.external_id, m.level, m.content, m.confidence, m.times_reinforced, m.occurred_at, m.event_from,
           m.event_to, m.claimed_at, m.time_zone, m.standing,
           coalesce(m.last_validated_at, m.created_at), sessions.session_key, perspectives.observer,
           coalesce(perspectives.subject, m.author), edges.found
    FROM memories AS m
    LEFT JOIN sessions ON sessions.id = m.session_id
    LEFT JOIN perspectives ON perspectives.id = m.perspective_id
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(jsonb_build_array(e.source_id, source.external_id, e.role) ORDER BY e.source_id, e.role)
               AS found
        FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id = m.id
    ) AS edges
    WHERE m.namespace_id = :namespace_id AND m.id = ANY (CAST(:ids AS bigint[]))
    """
)


def read_hits(tx: Transaction, namespace_id: int, ids: Sequence[int]) -> dict[int, Hit]:
    """Read the memories with these ids: id → memory. Erased memories are left out."""
    if not ids:
        return {}
    rows = tx.execute(_HITS, {"namespace_id": namespace_id, "ids": list(ids)})
    return {row[0]: Hit._make((*row[:-1], _citations(row[-1]))) for row in rows}


def _citations(edges: Sequence[tuple[int, str | None, str]] | None) -> tuple[Citation, ...]:
    return tuple(Citation(id=source, external_id=external_id, role=role) for source, external_id, role in edges or ())
