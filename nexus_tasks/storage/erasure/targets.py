"""Finding what is to be erased, locked until it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, Session


def memory(tx: Transaction, namespace_id: int, memory_id: int) -> Memory | None:
    """The memory, or ``None``. Its session is locked first: who digests or observes one does so, too."""
    query = select(Memory).where(Memory.namespace_id == namespace_id, Memory.id == memory_id)
    of = select(Memory.session_id).where(Memory.namespace_id == namespace_id, Memory.id == memory_id)
    tx.execute(select(Session.id).where(Session.id.in_(of)).with_for_update())
    return tx.scalar(query.with_for_update())


def of_session(tx: Transaction, session_id: int) -> dict[int, Memory]:
    """The messages and digests of a session. Its facts are found by what they rest on: they may rest on others, too."""
    own = (Memory.level == "raw") | Memory.level.like("summary%")
    query = select(Memory).where(Memory.session_id == session_id, own).order_by(Memory.id).with_for_update()
    return {found.id: found for found in tx.scalars(query)}


def of_namespace(tx: Transaction, namespace_id: int) -> Sequence[int]:
    """Every memory of a namespace."""
    query = select(Memory.id).where(Memory.namespace_id == namespace_id).order_by(Memory.id)
    return tx.scalars(query.with_for_update()).all()


def keys(tx: Transaction, session_ids: Collection[int | None]) -> Sequence[str]:
    """The keys of those of the sessions that still have messages."""
    left = select(Memory.id).where(Memory.session_id == Session.id, Memory.level == "raw").exists()
    return tx.scalars(select(Session.session_key).where(Session.id.in_(session_ids), left).order_by(Session.id)).all()
