"""Reading facts and relations for a reflection, holding plans for review, and archiving old messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, null, or_, select, text, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import aliased

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow

_SOURCE = aliased(Memory)


def unreflected_facts(tx: Transaction, perspective: PerspectiveRow, limit: int) -> Sequence[Memory]:
    """The perspective's facts that have not been reflected on, at most ``limit``, oldest first."""
    query = (
        select(Memory)
        .where(
            Memory.perspective_id == perspective.id,
            Memory.level == "explicit",
            Memory.id > perspective.reflected_through,
        )
        .order_by(Memory.id)
        .limit(limit)
    )
    return tx.scalars(query).all()


def count_active_facts(tx: Transaction, perspective_id: int) -> int:
    """How many facts of a perspective are not superseded."""
    query = select(func.count()).where(
        Memory.perspective_id == perspective_id, Memory.level == "explicit", Memory.valid_to.is_(None)
    )
    return int(tx.scalar(query) or 0)


def by_id(tx: Transaction, ids: Sequence[int]) -> dict[int, Memory]:
    """Memories by id."""
    return {memory.id: memory for memory in tx.scalars(select(Memory).where(Memory.id.in_(ids)))} if ids else {}


class LastSaid(NamedTuple):
    """When a fact was last said, in which message, and how many messages say it."""

    when: datetime
    message_id: int
    times: int


def last_said(tx: Transaction, ids: Sequence[int]) -> dict[int, LastSaid]:
    """When each fact was last said, by memory id. Of messages with the same time, the message stored last counts."""
    newest_first = aggregate_order_by(_SOURCE.id, _SOURCE.occurred_at.desc(), _SOURCE.id.desc())
    query = (
        select(Evidence.memory_id, func.max(_SOURCE.occurred_at), func.array_agg(newest_first)[1], func.count())
        .join(_SOURCE, _SOURCE.id == Evidence.source_id)
        .where(Evidence.memory_id.in_(ids), Evidence.role == "derived_from")
        .group_by(Evidence.memory_id)
    )
    return {memory_id: LastSaid(*said) for memory_id, *said in tx.execute(query)} if ids else {}


def has_relation(tx: Transaction, first: int, second: int) -> bool:
    """Whether two facts are related already: by an edge between them, or by a memory that rests on both."""
    direct = select(Evidence.memory_id).where(
        Evidence.role.in_(("reinforces", "supersedes")),
        or_(
            (Evidence.memory_id == first) & (Evidence.source_id == second),
            (Evidence.memory_id == second) & (Evidence.source_id == first),
        ),
    )
    both = (
        select(Evidence.memory_id)
        .join(Memory, Memory.id == Evidence.memory_id)
        .where(
            Memory.level.in_(("derived", "contradiction")),  # a third fact that reinforces both does not count
            Evidence.role.in_(("reinforces", "contradicts")),
            Evidence.source_id.in_((first, second)),
        )
        .group_by(Evidence.memory_id)
        .having(func.count(func.distinct(Evidence.source_id)) == 2)
    )
    return tx.scalar(direct.limit(1)) is not None or tx.scalar(both.limit(1)) is not None


def has_insight(tx: Transaction, perspective_id: int, support: Sequence[int]) -> bool:
    """Whether the perspective has an insight that rests on all of these facts."""
    query = (
        select(Evidence.memory_id)
        .join(Memory, Memory.id == Evidence.memory_id)
        .where(
            Memory.perspective_id == perspective_id,
            Evidence.role == "insight_support",
            Evidence.source_id.in_(support),
        )
        .group_by(Evidence.memory_id)
        .having(func.count() == len(set(support)))
    )
    return tx.scalar(query.limit(1)) is not None


def hold_for_review(tx: Transaction, perspective_id: int, plan: dict[str, Any] | None) -> None:
    """Store a reflection's plan until a person has reviewed it. ``None`` removes the stored plan."""
    held = null() if plan is None else plan  # a plain None would be stored as JSON's null, which IS NOT NULL
    tx.execute(update(PerspectiveRow).where(PerspectiveRow.id == perspective_id).values(held=held))


def archive_messages(tx: Transaction, namespace_id: int, before: datetime) -> int:
    """Archive the messages that were stored before ``before`` and are derived and digested.

    A message is derived when it has a derivation, and none of its derivations is wanted or dead. Returns the number of
    archived messages.
    """
    archived = tx.execute(
        text(
            """
            UPDATE memories AS m SET archived_at = now()
            FROM sessions AS s
            WHERE m.namespace_id = :namespace AND m.level = 'raw' AND m.archived_at IS NULL AND m.created_at < :before
              AND s.id = m.session_id AND m.seq <= s.digest_end_seq
              AND EXISTS (SELECT 1 FROM derivations AS d WHERE d.memory_id = m.id)
              AND NOT EXISTS (SELECT 1 FROM derivations AS d WHERE d.memory_id = m.id AND d.state <> 'done')
            RETURNING m.id
            """
        ),
        {"namespace": namespace_id, "before": before},
    )
    return len(archived.all())
