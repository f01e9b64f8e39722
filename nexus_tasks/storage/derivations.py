"""Storing and reading derivations. A derivation is one observer's request for facts from one message.

The table of derivations is the outbox of the job ``derive_memory``: each row with the state ``wanted`` asks for a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Derivation
from nexus_tasks.storage.newest import newest
from nexus_tasks.storage.shown import REACH


@dataclass(frozen=True, kw_only=True)
class WantedMessage:
    """A message that an observer wants facts from."""

    memory_id: int
    seq: int  # the message's place in its session
    tokens: int
    age: float  # seconds since the message was stored, by the clock of Postgres


@dataclass(frozen=True, kw_only=True)
class DerivationTarget:
    """A memory and one observer's derivation of the memory.

    ``state`` and ``batch`` are columns of the derivation. ``state`` is ``None`` when the derivation does not exist yet.
    """

    namespace_id: int
    level: str
    session_id: int | None
    seq: int | None
    tokens: int
    ended: bool  # whether the memory's session has ended
    state: str | None
    batch: str | None


_TARGET = text(
    """
    SELECT m.namespace_id, m.level, m.session_id, m.seq, m.tokens, s.ended_at IS NOT NULL AS ended, d.state, d.batch
    FROM memories m
    LEFT JOIN sessions s ON s.id = m.session_id
    LEFT JOIN derivations d ON d.memory_id = m.id AND d.observer = :observer
    WHERE m.id = :memory_id
    """
)


def find_target(tx: Transaction, memory_id: int, observer: str) -> DerivationTarget | None:
    """The memory with its derivation for ``observer``, or ``None`` when there is no such memory."""
    found = tx.execute(_TARGET, {"memory_id": memory_id, "observer": observer}).first()
    return DerivationTarget(**found._mapping) if found else None


def want(tx: Transaction, namespace_id: int, session_id: int, memory_id: int, observer: str) -> None:
    """Add a wanted derivation, unless the observer has a derivation of the message already."""
    row = {"namespace_id": namespace_id, "memory_id": memory_id, "session_id": session_id, "observer": observer}
    tx.execute(insert(Derivation).values(row).on_conflict_do_nothing())


_WANTED = text(
    """
    SELECT m.id AS memory_id, m.seq, m.tokens, CAST(extract(epoch FROM now() - m.created_at) AS float8) AS age
    FROM derivations d JOIN memories m ON m.id = d.memory_id
    WHERE d.session_id = :session_id AND d.observer = :observer AND d.state = 'wanted'
      AND d.batch IS NOT DISTINCT FROM CAST(:batch AS text)
    ORDER BY CAST(:near AS integer) IS NOT NULL AND abs(m.seq - CAST(:near AS integer)) > :reach, d.memory_id LIMIT 500
    """
)


def wanted_messages(
    tx: Transaction, session_id: int, observer: str, *, batch: str | None = None, near: int | None = None
) -> list[WantedMessage]:
    """The oldest messages of a session that ``observer`` wants facts from, at most 500.

    Args:
        near: a place in the session. Messages at most ``REACH`` places away come first.
        batch: the name of an earlier model call. Only the messages of this call are returned, so that the next run
            repeats the request and finds its saved answer. ``None`` returns only messages that no earlier call
            contained. The answer of an earlier call may be saved already, and a new call with its messages would cost
            the money again.
    """
    values = {"session_id": session_id, "observer": observer, "batch": batch, "near": near, "reach": REACH}
    return [WantedMessage(**row._mapping) for row in tx.execute(_WANTED, values)]


_STORE_BATCH = text(
    "UPDATE derivations SET batch = :batch"
    " WHERE memory_id = ANY(CAST(:ids AS bigint[])) AND observer = :observer AND state = 'wanted'"
)


def store_batch(tx: Transaction, memory_ids: Sequence[int], observer: str, batch: str) -> None:
    """Store the name ``batch`` in the wanted derivations of the messages that a model call will contain.

    Commit this before the model is called. If the run dies, the next run then sends the same request.
    """
    tx.execute(_STORE_BATCH, {"ids": list(memory_ids), "observer": observer, "batch": batch})


_MARK_DONE = text(
    """
    WITH source AS (
        SELECT d.id FROM derivations d JOIN memories m ON m.id = d.memory_id
        WHERE d.memory_id = ANY(CAST(:ids AS bigint[])) AND d.observer = :observer AND d.state = 'wanted'
        ORDER BY d.memory_id FOR NO KEY UPDATE OF d, m
    )
    UPDATE derivations d SET state = 'done', batch = NULL FROM source WHERE d.id = source.id RETURNING d.memory_id
    """
)


def mark_done(tx: Transaction, memory_ids: Sequence[int], observer: str) -> set[int]:
    """Change wanted derivations to done, and lock their messages. Returns the ids of these messages.

    The result lacks the ids of messages that were erased, or that another run has derived. The caller must not store
    facts from a message whose id is missing.
    """
    return set(tx.scalars(_MARK_DONE, {"ids": list(memory_ids), "observer": observer}))


def mark(tx: Transaction, namespace_id: int, memory_id: int, observer: str, *, dead: bool) -> None:
    """Make a wanted derivation dead when its job gives up, or make a dead derivation wanted when its job is retried."""
    was, becomes = ("wanted", "dead") if dead else ("dead", "wanted")
    tx.execute(
        update(Derivation)
        .where(
            Derivation.memory_id == memory_id,
            Derivation.observer == observer,
            Derivation.namespace_id == namespace_id,
            Derivation.state == was,
        )
        .values(state=becomes, batch=None)
    )


def of_messages(tx: Transaction, memory_ids: Sequence[int], *, state: str | None = None) -> list[tuple[int, str]]:
    """The derivations of messages, as (memory id, observer). With ``state``, only the derivations in this state."""
    query = select(Derivation.memory_id, Derivation.observer).where(among(Derivation.memory_id, memory_ids))
    if state is not None:
        query = query.where(Derivation.state == state)
    return [(memory_id, observer) for memory_id, observer in tx.execute(query.order_by(Derivation.id))]


# Postgres reads the page from the partial index of wanted rows, because the limit is applied before the join, and
# because 'wanted' is a literal and not a parameter.
_WANTED_PAGE = text(
    """
    SELECT page.id, n.name, page.memory_id, page.observer
    FROM (SELECT id, namespace_id, memory_id, observer FROM derivations WHERE state = 'wanted' AND id > :after
          ORDER BY id LIMIT :limit) AS page
    JOIN namespaces AS n ON n.id = page.namespace_id ORDER BY page.id
    """
)
newest_wanted = newest("derivations", "state = 'wanted'")


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, int, str]]:
    """At most ``limit`` wanted derivations with ids above ``after``, in the order of their ids.

    Each is (derivation id, namespace, memory id, observer).
    """
    return list(tx.execute(_WANTED_PAGE, {"after": after, "limit": limit}).all())
