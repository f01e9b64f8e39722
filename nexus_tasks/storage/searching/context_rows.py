"""Reading the memories that a context (a block of memories for a prompt) shows.

The statements read only the columns that a context needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import TextClause, text

from nexus_tasks.event_time import Span, describe, local
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching.scope import Filter, build_scope


class ContextRow(NamedTuple):
    """A memory in a context. ``subject`` is the subject of a fact, or the author of a message."""

    id: int
    external_id: str | None
    level: str
    content: str
    subject: str | None
    occurred_at: datetime
    confidence: float
    times_reinforced: int
    seq: int | None
    event_from: datetime | None
    event_to: datetime | None
    time_zone: str | None
    role: str | None  # the role of a message; ``None`` for other memories

    @property
    def event(self) -> str | None:
        """The time of which a fact speaks, such as ``2026-05-03``, unless the fact's own words say it."""
        if self.event_from is None or self.event_to is None or self.level.startswith("summary"):
            return None
        found = describe(Span(local(self.event_from, self.time_zone), local(self.event_to, self.time_zone)))
        return None if found in self.content else found


_COLUMNS = (
    "m.id, m.external_id, m.level, m.content, m.author, m.occurred_at, m.confidence, m.times_reinforced, m.seq,"
    " m.event_from, m.event_to, m.time_zone, m.role"
)


def newest(
    tx: Transaction, wanted: Filter, levels: Sequence[tuple[str, float]], limit: int
) -> dict[str, list[ContextRow]]:
    """The newest memories of each level that pass the filter: level → memories, newest first.

    Args:
        levels: pairs of a level and the lowest confidence. Memories with a lower confidence are left out.
        limit: the largest number of memories of each level.
    """
    within = build_scope(wanted)
    rows = tx.execute(
        _newest(within.both, limit),
        {**within.values, "levels": [level for level, _ in levels], "least": [least for _, least in levels]},
    )
    found: dict[str, list[ContextRow]] = {level: [] for level, _ in levels}
    for row in rows:
        line = ContextRow._make(row)
        found[line.level].append(line)
    return found


@lru_cache(maxsize=256)
def _newest(within: str, limit: int) -> TextClause:
    return text(
        f"""
        SELECT one.*
        FROM unnest(CAST(:levels AS text[]), CAST(:least AS float8[])) AS asked (level, least)
        CROSS JOIN LATERAL (
            SELECT {_COLUMNS} FROM memories AS m
            WHERE {within} AND m.level = asked.level AND m.confidence >= asked.least
            ORDER BY m.occurred_at DESC, m.id DESC LIMIT {limit}
        ) AS one
        ORDER BY one.occurred_at DESC, one.id DESC
        """
    )


_BY_ID = text(
    f"SELECT {_COLUMNS} FROM memories AS m"
    " WHERE m.namespace_id = :namespace_id AND m.id = ANY (CAST(:ids AS bigint[])) AND m.confidence >= :least"
)


def by_id(tx: Transaction, namespace_id: int, ids: Sequence[int], least: float) -> dict[int, ContextRow]:
    """Read the memories with these ids and a confidence of at least ``least``: id → memory."""
    rows = tx.execute(_BY_ID, {"namespace_id": namespace_id, "ids": list(ids), "least": least})
    return {row[0]: ContextRow._make(row) for row in rows}


_OF_SESSION = text(
    f"""
    WITH session AS (SELECT id FROM sessions WHERE namespace_id = :namespace_id AND session_key = :session_key)
    SELECT {_COLUMNS}
    FROM session_digests AS digest JOIN memories AS m ON m.id = digest.memory_id
    WHERE digest.session_id = (SELECT id FROM session) AND m.valid_to IS NULL
      AND (CAST(:min_standing AS smallint) IS NULL OR m.standing >= :min_standing)
    UNION ALL (
        SELECT {_COLUMNS} FROM memories AS m
        WHERE m.namespace_id = :namespace_id AND m.session_id = (SELECT id FROM session) AND m.level = 'raw'
          AND (CAST(:min_standing AS smallint) IS NULL OR m.standing >= :min_standing)
          AND EXISTS (
              SELECT FROM derivations AS d WHERE d.memory_id = m.id AND d.state = 'wanted'
              AND (CAST(:observer AS text) IS NULL OR d.observer = :observer)
          )
        ORDER BY m.seq DESC LIMIT :limit
    )
    """
)


def of_session(
    tx: Transaction, wanted: Filter, session_key: str, limit: int
) -> tuple[dict[str, ContextRow], list[ContextRow]]:
    """A session's digests, and the session's newest messages that are not derived yet.

    A message is not derived yet when its derivation for the filter's observer is wanted. If the filter has no observer,
    a wanted derivation for any observer counts.

    Returns:
        The digests (level → digest), and at most ``limit`` messages, newest first.
    """
    rows = tx.execute(
        _OF_SESSION,
        {
            "namespace_id": wanted.namespace_id,
            "observer": wanted.observer,
            "session_key": session_key,
            "min_standing": wanted.min_standing,
            "limit": limit,
        },
    )
    lines = [ContextRow._make(row) for row in rows]
    said = sorted((line for line in lines if line.level == "raw"), key=lambda line: -(line.seq or 0))
    return {line.level: line for line in lines if line.level != "raw"}, said
