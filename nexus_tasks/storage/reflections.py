"""Reading facts and relations for a reflection, storing plans that wait for review, and archiving old messages.

A reflection relates the new facts of a perspective (an observer's memories about one subject) to the perspective's old
facts. ``conclusions.py`` stores a reflection's results.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, null, or_, select, text, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import aliased

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow

_SOURCE = aliased(Memory)


def unreflected_facts(tx: Transaction, perspective: PerspectiveRow, limit: int) -> Sequence[Memory]:
    """The perspective's unread facts, at most ``limit``, oldest first. Facts to judge again are among them."""
    query = (
        select(Memory)
        .where(
            Memory.perspective_id == perspective.id,
            Memory.level == "explicit",
            (Memory.id > perspective.reflected_through) | Memory.id.in_(perspective.again),
        )
        .order_by(Memory.id)
        .limit(limit)
    )
    return tx.scalars(query).all()


def count_active_facts(tx: Transaction, perspective_id: int) -> int:
    """The number of a perspective's facts that are neither superseded nor expired."""
    query = select(func.count()).where(
        Memory.perspective_id == perspective_id,
        Memory.level == "explicit",
        Memory.valid_to.is_(None),
        Memory.expires_at.is_(None) | (Memory.expires_at > func.now()),
    )
    return int(tx.scalar(query) or 0)


def by_id(tx: Transaction, ids: Sequence[int]) -> dict[int, Memory]:
    """Read memories by id. Missing memories are left out."""
    return {memory.id: memory for memory in tx.scalars(select(Memory).where(Memory.id.in_(ids)))} if ids else {}


class LastSaid(NamedTuple):
    """The last message that says a fact, and the number of messages that say the fact."""

    when: datetime  # the time of the last message
    message_id: int  # the id of the last message
    times: int  # the number of messages


def last_said(tx: Transaction, ids: Sequence[int]) -> dict[int, LastSaid]:
    """The last message that says each fact, by the fact's memory id.

    Of two messages with the same time, the message that was stored later counts as the last message.
    """
    newest_first = aggregate_order_by(_SOURCE.id, _SOURCE.occurred_at.desc(), _SOURCE.id.desc())
    query = (
        select(Evidence.memory_id, func.max(_SOURCE.occurred_at), func.array_agg(newest_first)[1], func.count())
        .join(_SOURCE, _SOURCE.id == Evidence.source_id)
        .where(Evidence.memory_id.in_(ids), Evidence.role == "derived_from")
        .group_by(Evidence.memory_id)
    )
    return {memory_id: LastSaid(*said) for memory_id, *said in tx.execute(query)} if ids else {}


def has_relation(tx: Transaction, first: int, second: int) -> bool:
    """Whether two facts are related already.

    Two facts are related when an edge ``reinforces``, ``supersedes`` or ``duplicate_of`` joins them. They are also
    related when one reworded fact or one contradiction rests on both of them.
    """
    direct = select(Evidence.memory_id).where(
        Evidence.role.in_(("reinforces", "supersedes", "duplicate_of")),
        or_(
            (Evidence.memory_id == first) & (Evidence.source_id == second),
            (Evidence.memory_id == second) & (Evidence.source_id == first),
        ),
    )
    both = (
        select(Evidence.memory_id)
        .join(Memory, Memory.id == Evidence.memory_id)
        .where(
            Memory.level.in_(("derived", "contradiction")),  # leaves out a third fact that reinforces both facts
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
    """Store a reflection's plan until a person reviews the plan. ``None`` removes the stored plan."""
    # SQLAlchemy would store None as the JSON value null, for which the condition IS NOT NULL is true.
    held = null() if plan is None else plan
    tx.execute(update(PerspectiveRow).where(PerspectiveRow.id == perspective_id).values(held=held))


def archive_messages(tx: Transaction, namespace_id: int, age: timedelta) -> int:
    """Archive the messages that were stored ``age`` ago or earlier, if they are derived and digested.

    A usual search leaves out archived messages. A message counts as derived when it has at least one derivation and all
    its derivations are done. Returns the number of archived messages.
    """
    archived = tx.execute(
        text(
            """
            UPDATE memories AS m SET archived_at = now()
            FROM sessions AS s
            WHERE m.namespace_id = :namespace AND m.level = 'raw' AND m.archived_at IS NULL
              AND m.created_at < now() - CAST(:age AS interval)
              AND s.id = m.session_id AND m.seq <= s.digest_end_seq
              AND EXISTS (SELECT 1 FROM derivations AS d WHERE d.memory_id = m.id)
              AND NOT EXISTS (SELECT 1 FROM derivations AS d WHERE d.memory_id = m.id AND d.state <> 'done')
            RETURNING m.id
            """
        ),
        {"namespace": namespace_id, "age": age},
    )
    return len(archived.all())
