"""Computing from a fact's messages when the fact expires."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction

_SETTLE = text(
    """
    UPDATE memories AS fact SET expires_at = said.expires_at, erase_expired = said.erase_expired
    FROM (
        SELECT e.memory_id, coalesce(bool_and(source.erase_expired), false) AS erase_expired,
               CASE WHEN bool_and(source.expires_at IS NOT NULL) THEN max(source.expires_at) END AS expires_at
        FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id = ANY(CAST(:ids AS bigint[])) AND e.role = 'derived_from'
        GROUP BY e.memory_id
    ) AS said
    WHERE fact.id = said.memory_id
      AND (fact.expires_at, fact.erase_expired) IS DISTINCT FROM (said.expires_at, said.erase_expired)
    """
)


def settle(tx: Transaction, fact_ids: Collection[int]) -> None:
    """Let facts expire with the last of the messages that they rest on, or never if one of these does not expire.

    Call this function after a fact has got or lost messages.
    """
    if fact_ids:
        tx.execute(_SETTLE, {"ids": sorted(fact_ids)})
