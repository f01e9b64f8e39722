"""Counting the memories, jobs and costs of many namespaces at once, for ``nexus status`` and ``nexus metrics``.

One query per figure reads the numbers of all namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from sqlalchemy import select, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.types import LEVELS


@dataclass(kw_only=True)
class Figures:
    """The figures of a namespace."""

    # Level → number of memories. Superseded and expired memories do not count.
    memories: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    underived: int = 0  # messages whose facts are still to be derived for an observer
    oldest_underived: datetime | None = None  # when the oldest derivation that is still to be done was requested
    digests_wanted: int = 0  # sessions that still lack a requested digest, except those whose digest job gave up
    model_calls_today: int = 0  # since midnight UTC
    spend_today_usd: Decimal = Decimal(0)  # since midnight UTC
    observed: bool = False  # whether at least one session has an observation log
    # Perspectives (an observer's memories about one subject) with a plan that is held for review.
    reviews: list[PerspectiveRow] = field(default_factory=list)


_OF = "namespace_id = ANY(CAST(:ids AS bigint[]))"
_MEMORIES = text(
    f"SELECT namespace_id, level, count(*) FROM memories WHERE {_OF} AND valid_to IS NULL"
    " AND (expires_at IS NULL OR expires_at > now()) GROUP BY 1, 2"
)
# The inner query groups the derivations by message, because count(DISTINCT memory_id) would sort all ids.
_BACKLOG = text(
    f"""
    SELECT namespace_id, count(*), min(created_at) FROM (
        SELECT namespace_id, memory_id, min(created_at) AS created_at FROM derivations
        WHERE {_OF} AND state = 'wanted' GROUP BY 1, 2
    ) AS wanted GROUP BY 1
    """
)
_DIGESTS = text(
    f"SELECT namespace_id, count(DISTINCT session_id) FROM digest_requests WHERE {_OF} AND NOT dead GROUP BY 1"
)
_SPENT = text(
    f"""
    SELECT namespace_id, count(*), coalesce(sum(cost_usd), 0) FROM model_calls
    WHERE {_OF} AND at >= date_trunc('day', now(), 'UTC') GROUP BY 1
    """
)
_OBSERVED = text(f"SELECT DISTINCT namespace_id FROM observation_logs WHERE {_OF}")


def of_namespaces(tx: Transaction, namespace_ids: Sequence[int], *, memories: bool = True) -> dict[int, Figures]:
    """The figures of each namespace: namespace id → figures. Without ``memories``, the memories are not counted."""
    found = {i: Figures() if memories else Figures(memories={}) for i in namespace_ids}
    ids = {"ids": list(namespace_ids)}
    for i, level, number in tx.execute(_MEMORIES, ids) if memories else ():
        found[i].memories[level] = number
    for i, number, oldest in tx.execute(_BACKLOG, ids):
        found[i].underived, found[i].oldest_underived = number, oldest
    for i, number in tx.execute(_DIGESTS, ids):
        found[i].digests_wanted = number
    for i, calls, usd in tx.execute(_SPENT, ids):
        found[i].model_calls_today, found[i].spend_today_usd = calls, Decimal(usd)
    for (i,) in tx.execute(_OBSERVED, ids):
        found[i].observed = True
    held = select(PerspectiveRow).where(text(_OF), PerspectiveRow.held.is_not(None)).order_by(PerspectiveRow.id)
    for row in tx.scalars(held, ids):
        found[row.namespace_id].reviews.append(row)
    return found
