"""Derivations: which observer wants facts from which message. The outbox of ``derive_memory``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Memory, Namespace


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A message whose facts are wanted."""

    memory_id: int
    tokens: int
    age: float  # seconds, by the clock of Postgres


def state(tx: Transaction, namespace_id: int, memory: Memory, observer: str) -> tuple[str, str | None]:
    """State and batch of a derivation, which is made when nobody had asked for it."""
    assert memory.session_id is not None
    query = select(Derivation.state, Derivation.batch).where(
        Derivation.memory_id == memory.id, Derivation.observer == observer
    )
    found = tx.execute(query).first()
    if found is None:
        tx.execute(
            insert(Derivation)
            .values(namespace_id=namespace_id, memory_id=memory.id, session_id=memory.session_id, observer=observer)
            .on_conflict_do_nothing()
        )
        found = tx.execute(query).one()
    return found[0], found[1]


def wanted(
    tx: Transaction, session_id: int, observer: str, *, batch: str | None = None, limit: int = 500
) -> list[Wanted]:
    """The oldest wanted messages of a session; with ``batch`` those of one model call that was cut off."""
    query = (
        select(Memory.id, Memory.tokens, func.extract("epoch", func.now() - Memory.created_at))
        .join(Derivation, Derivation.memory_id == Memory.id)
        .where(Derivation.session_id == session_id, Derivation.observer == observer, Derivation.state == "wanted")
        .order_by(Derivation.memory_id)
        .limit(limit)
    )
    if batch:
        query = query.where(Derivation.batch == batch)
    return [Wanted(memory_id=i, tokens=tokens, age=float(age)) for i, tokens, age in tx.execute(query)]


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


def given_up(tx: Transaction, memory_ids: Sequence[int]) -> set[int]:
    """Those of the messages that are a dead letter of some observer."""
    return _in_state(tx, memory_ids, "dead")


def has_other_observers(tx: Transaction, memory_ids: Sequence[int], observer: str) -> bool:
    """Whether facts are derived from these messages for other observers too, before or after."""
    query = select(Derivation.id).where(Derivation.memory_id.in_(memory_ids), Derivation.observer != observer)
    return tx.scalar(query.limit(1)) is not None


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


def derived(tx: Transaction, memory_ids: Sequence[int]) -> set[int]:
    """Those of the messages that some observer has derived facts from."""
    return _in_state(tx, memory_ids, "done")


_IN_STATE = text("SELECT memory_id FROM derivations WHERE memory_id = ANY(CAST(:ids AS bigint[])) AND state = :state")


def _in_state(tx: Transaction, memory_ids: Sequence[int], state: str) -> set[int]:
    return set(tx.scalars(_IN_STATE, {"ids": list(memory_ids), "state": state})) if memory_ids else set()


def backlog(tx: Transaction, namespace_id: int) -> tuple[int, datetime | None]:
    """How many messages of a namespace have wanted derivations, and when the oldest of them was stored."""
    query = select(func.count(func.distinct(Derivation.memory_id)), func.min(Derivation.created_at)).where(
        Derivation.namespace_id == namespace_id, Derivation.state == "wanted"
    )
    messages, oldest = tx.execute(query).one()
    return int(messages), oldest
