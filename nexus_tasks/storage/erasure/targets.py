"""Finding the memories that a caller wants to erase, and locking them until the transaction ends.

``cascade.py`` then finds the memories that must be erased with them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select, text
from sqlalchemy.orm import defer

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Memory, SessionRow

# Options of a query of memories. A text is then read when somebody asks for it.
WITHOUT_TEXTS = (defer(Memory.content), defer(Memory.tool_calls), defer(Memory.data))


def lock_memory(tx: Transaction, namespace_id: int, memory_id: int) -> Memory | None:
    """Find and lock a memory. Returns ``None`` when the namespace has no such memory.

    The memory's session is locked before the memory. Jobs that digest or observe the session take the two locks in the
    same order, so an erasure and a job do not deadlock.
    """
    query = select(Memory).where(Memory.namespace_id == namespace_id, Memory.id == memory_id).options(*WITHOUT_TEXTS)
    of = select(Memory.session_id).where(Memory.namespace_id == namespace_id, Memory.id == memory_id)
    tx.execute(select(SessionRow.id).where(SessionRow.id.in_(of)).with_for_update())
    return tx.scalar(query.with_for_update())


def lock_expired(tx: Transaction, namespace_id: int, memory_ids: Collection[int]) -> dict[int, Memory]:
    """Lock those of the memories that have expired and are to be erased therefore. Returns them as id → memory.

    Sessions are locked before their messages, and perspectives before their facts, as jobs do it.
    """
    of = select(Memory.session_id).where(Memory.namespace_id == namespace_id, among(Memory.id, memory_ids))
    tx.execute(select(SessionRow.id).where(SessionRow.id.in_(of)).order_by(SessionRow.id).with_for_update())
    messages = select(Memory.id).where(among(Memory.id, memory_ids), Memory.level == "raw").order_by(Memory.id)
    tx.execute(messages.with_for_update())
    lock_perspectives(tx, memory_ids)
    query = select(Memory).where(
        Memory.namespace_id == namespace_id,
        among(Memory.id, memory_ids),
        Memory.expires_at <= func.now(),
        Memory.erase_expired,
    )
    query = query.order_by(Memory.id).options(*WITHOUT_TEXTS)
    return {found.id: found for found in tx.scalars(query.with_for_update())}


def lock_session(tx: Transaction, session_id: int) -> dict[int, Memory]:
    """Lock the messages and digests of a session. Returns them as id → memory.

    Facts are left out, because a fact may also rest on messages of another session. ``cascade.py`` finds the facts that
    must be deleted. The texts are not read before somebody asks for one: a session may have gigabytes.
    """
    own = (Memory.level == "raw") | Memory.level.like("summary%")
    query = select(Memory).where(Memory.session_id == session_id, own).order_by(Memory.id).options(*WITHOUT_TEXTS)
    return {found.id: found for found in tx.scalars(query.with_for_update())}


def lock_messages(tx: Transaction, memory_ids: Collection[int]) -> dict[int, Memory]:
    """Lock messages, and the perspectives of the facts that were derived from them. Returns id → message.

    The caller has locked their session.
    """
    query = select(Memory).where(among(Memory.id, memory_ids)).order_by(Memory.id).options(*WITHOUT_TEXTS)
    found = {message.id: message for message in tx.scalars(query.with_for_update())}
    lock_perspectives(tx, memory_ids)
    return found


_PERSPECTIVES = text(
    """
    WITH RECURSIVE resting AS (
        SELECT unnest(CAST(:ids AS bigint[])) AS id
        UNION
        SELECT e.memory_id FROM resting JOIN evidence AS e ON e.source_id = resting.id
    )
    SELECT id FROM perspectives
    WHERE id IN (SELECT m.perspective_id FROM resting JOIN memories AS m USING (id))
    ORDER BY id FOR NO KEY UPDATE
    """
)


def lock_perspectives(tx: Transaction, memory_ids: Collection[int]) -> None:
    """Lock the perspectives of all memories that may rest on these. The caller has locked the memories.

    Jobs lock a perspective before its facts. So an erasure, which locks facts, does not deadlock with them.
    """
    tx.execute(_PERSPECTIVES, {"ids": list(memory_ids)})


def lock_namespace(tx: Transaction, namespace_id: int) -> Sequence[int]:
    """Lock all sessions and memories of a namespace. Returns the ids of the memories."""
    tx.execute(
        select(SessionRow.id).where(SessionRow.namespace_id == namespace_id).order_by(SessionRow.id).with_for_update()
    )
    query = select(Memory.id).where(Memory.namespace_id == namespace_id).order_by(Memory.id)
    return tx.scalars(query.with_for_update()).all()


def keys_with_messages(tx: Transaction, session_ids: Collection[int | None]) -> Sequence[str]:
    """The session keys of the sessions ``session_ids``, without the sessions that have no messages."""
    left = select(Memory.id).where(Memory.session_id == SessionRow.id, Memory.level == "raw").exists()
    return tx.scalars(
        select(SessionRow.session_key).where(SessionRow.id.in_(session_ids), left).order_by(SessionRow.id)
    ).all()
