"""Derivations: which observer wants facts from which message. The outbox of ``derive_memory``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Namespace


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A message whose facts are wanted."""

    memory_id: int
    tokens: int
    age: float  # seconds, by the clock of Postgres


@dataclass(frozen=True, kw_only=True)
class Lead:
    """A memory that somebody wants facts from, and how far that is. ``state`` is ``None`` when nobody had asked yet."""

    namespace_id: int
    level: str
    session_id: int | None
    tokens: int
    ended: bool  # its session
    state: str | None
    batch: str | None


_LEAD = text(
    """
    SELECT m.namespace_id, m.level, m.session_id, m.tokens, s.ended_at IS NOT NULL AS ended, d.state, d.batch
    FROM memories m
    LEFT JOIN sessions s ON s.id = m.session_id
    LEFT JOIN derivations d ON d.memory_id = m.id AND d.observer = :observer
    WHERE m.id = :memory_id
    """
)


def lead(tx: Transaction, memory_id: int, observer: str) -> Lead | None:
    """The memory, or ``None``."""
    found = tx.execute(_LEAD, {"memory_id": memory_id, "observer": observer}).first()
    return Lead(**found._mapping) if found else None


def want(tx: Transaction, namespace_id: int, session_id: int, memory_id: int, observer: str) -> None:
    """Note that facts are wanted from a message, unless that is noted already."""
    row = {"namespace_id": namespace_id, "memory_id": memory_id, "session_id": session_id, "observer": observer}
    tx.execute(insert(Derivation).values(row).on_conflict_do_nothing())


_WANTED = text(
    """
    SELECT m.id AS memory_id, m.tokens, CAST(extract(epoch FROM now() - m.created_at) AS float8) AS age
    FROM derivations d JOIN memories m ON m.id = d.memory_id
    WHERE d.session_id = :session_id AND d.observer = :observer AND d.state = 'wanted'
      AND (CAST(:batch AS text) IS NULL OR d.batch = :batch)
    ORDER BY d.memory_id LIMIT 500
    """
)


def wanted(tx: Transaction, session_id: int, observer: str, *, batch: str | None = None) -> list[Wanted]:
    """The oldest wanted messages of a session; with ``batch`` those of one model call that was cut off."""
    rows = tx.execute(_WANTED, {"session_id": session_id, "observer": observer, "batch": batch})
    return [Wanted(**row._mapping) for row in rows]


_STORE_BATCH = text(
    "UPDATE derivations SET batch = :batch"
    " WHERE memory_id = ANY(CAST(:ids AS bigint[])) AND observer = :observer AND state = 'wanted'"
)


def store_batch(tx: Transaction, memory_ids: Sequence[int], observer: str, batch: str) -> None:
    """Note the members of a model call before it is made, so that a rerun asks the same question."""
    tx.execute(_STORE_BATCH, {"ids": list(memory_ids), "observer": observer, "batch": batch})


_FLIP = text(
    """
    WITH source AS (
        SELECT d.id FROM derivations d JOIN memories m ON m.id = d.memory_id
        WHERE d.memory_id = ANY(CAST(:ids AS bigint[])) AND d.observer = :observer AND d.state = 'wanted'
        ORDER BY d.memory_id FOR NO KEY UPDATE OF d, m
    )
    UPDATE derivations d SET state = 'done', batch = NULL FROM source WHERE d.id = source.id RETURNING d.memory_id
    """
)


def flip(tx: Transaction, memory_ids: Sequence[int], observer: str) -> set[int]:
    """Flip derivations that are still wanted to done, and lock their sources; returns their memory ids.

    What was erased or derived by another run meanwhile is not among them: its facts must not be stored.
    """
    return set(tx.scalars(_FLIP, {"ids": list(memory_ids), "observer": observer}))


def mark(tx: Transaction, memory_id: int, observer: str, *, dead: bool) -> None:
    """Take a derivation out of the outbox with its dead letter, or put it back when it is retried."""
    was, becomes = ("wanted", "dead") if dead else ("dead", "wanted")
    tx.execute(
        update(Derivation)
        .where(Derivation.memory_id == memory_id, Derivation.observer == observer, Derivation.state == was)
        .values(state=becomes, batch=None)
    )


def of(tx: Transaction, memory_ids: Sequence[int], *, state: str | None = None) -> list[tuple[int, str]]:
    """The derivations of messages as (memory id, observer); with ``state`` only those in it."""
    query = select(Derivation.memory_id, Derivation.observer).where(Derivation.memory_id.in_(memory_ids))
    if state is not None:
        query = query.where(Derivation.state == state)
    return [(memory_id, observer) for memory_id, observer in tx.execute(query.order_by(Derivation.id))]


def page(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, int, str]]:
    """Derivation id, namespace, memory id and observer of wanted derivations from id ``after`` on."""
    query = (
        select(Derivation.id, Namespace.name, Derivation.memory_id, Derivation.observer)
        .join(Namespace, Namespace.id == Derivation.namespace_id)
        .where(Derivation.state == "wanted", Derivation.id > after)
        .order_by(Derivation.id)
        .limit(limit)
    )
    return list(tx.execute(query).all())


def backlog(tx: Transaction, namespace_id: int) -> tuple[int, datetime | None]:
    """How many messages of a namespace have wanted derivations, and when the oldest of them was stored."""
    query = select(func.count(func.distinct(Derivation.memory_id)), func.min(Derivation.created_at)).where(
        Derivation.namespace_id == namespace_id, Derivation.state == "wanted"
    )
    messages, oldest = tx.execute(query).one()
    return int(messages), oldest
