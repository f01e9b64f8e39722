"""Reading search hits: memories with the names of their sessions and perspectives, and their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text

from nexus_tasks import limits
from nexus_tasks.storage import answer_bytes
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
    edges: int  # number of the sources, of which `evidence` has the earliest
    evidence: tuple[Citation, ...]


# The texts of the others (``ids`` that are not ``shown``) are not read.
_HITS = f"""
    SELECT m.id, m.external_id, m.level,
           CASE WHEN m.id = ANY (CAST(:shown AS bigint[])) THEN m.content ELSE '' END AS content,
           m.confidence, m.times_reinforced, m.occurred_at, m.event_from, m.event_to, m.claimed_at, m.time_zone,
           m.standing, coalesce(m.last_validated_at, m.created_at) AS validated_at, sessions.session_key,
           perspectives.observer, coalesce(perspectives.subject, m.author) AS subject,
           edges.number AS edges, edges.found AS evidence
    FROM memories AS m
    LEFT JOIN sessions ON sessions.id = m.session_id
    LEFT JOIN perspectives ON perspectives.id = m.perspective_id
    CROSS JOIN LATERAL (
        SELECT max(e.number) AS number,
               jsonb_agg(jsonb_build_array(e.source_id, source.external_id, e.role) ORDER BY e.source_id, e.role)
               AS found
        FROM (
            SELECT source_id, role, count(*) OVER () AS number FROM evidence WHERE memory_id = m.id
            ORDER BY source_id, role LIMIT {limits.HIT_EVIDENCE}
        ) AS e JOIN memories AS source ON source.id = e.source_id
    ) AS edges
    WHERE m.namespace_id = :namespace_id AND m.id = ANY (CAST(:ids AS bigint[]))
    """
_READ = text(answer_bytes.all_or_first(_HITS, answer_bytes.CONTENT))


def read_hits(tx: Transaction, namespace_id: int, shown: Sequence[int], others: Sequence[int] = ()) -> dict[int, Hit]:
    """Read the memories with these ids: id → memory. Erased memories are left out.

    Args:
        shown: the memories to read.
        others: memories to read without their texts, which are empty in the result.

    Raises:
        InvalidInput: the texts are too large for an answer (see ``answer_bytes``).
    """
    if not shown:
        return {}
    values = {"namespace_id": namespace_id, "shown": list(shown), "ids": [*shown, *others]}
    rows = answer_bytes.checked(tx.execute(_READ, values).all())
    end = len(Hit._fields) - 2
    return {row.id: Hit._make((*row[:end], row.edges or 0, _citations(row.evidence))) for row in rows}


def _citations(edges: Sequence[tuple[int, str | None, str]] | None) -> tuple[Citation, ...]:
    return tuple(Citation(id=source, external_id=external_id, role=role) for source, external_id, role in edges or ())
