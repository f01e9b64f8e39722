"""Computing from a fact's messages when the fact expires, and from a conclusion's facts when the conclusion expires."""

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
    RETURNING fact.id
    """
)
# A conclusion from a fact that has expired is as uncertain as the fact.
_SETTLE_CONCLUSIONS = text(
    """
    UPDATE memories AS conclusion SET expires_at = rests.expires_at
    FROM (
        SELECT e.memory_id, min(source.expires_at) AS expires_at
        FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id IN (SELECT memory_id FROM evidence WHERE source_id = ANY(CAST(:ids AS bigint[])))
        GROUP BY e.memory_id
    ) AS rests
    WHERE conclusion.id = rests.memory_id AND conclusion.level IN ('derived', 'contradiction')
      AND conclusion.expires_at IS DISTINCT FROM rests.expires_at
    """
)


def settle(tx: Transaction, fact_ids: Collection[int]) -> None:
    """Let facts expire with the last of the messages that they rest on, or never if one of these does not expire.

    Conclusions that rest on them expire with the first of their facts. Call this function after a fact has got or lost
    messages.
    """
    if not fact_ids:
        return
    changed = list(tx.scalars(_SETTLE, {"ids": sorted(fact_ids)}))
    if changed:
        tx.execute(_SETTLE_CONCLUSIONS, {"ids": changed})
