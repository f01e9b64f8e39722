"""Digests: what a session's next one is made from, and storing it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select, update

from nexus_tasks.storage import facts
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow, Session, SessionDigest
from nexus_tasks.text import estimate_tokens

KINDS = ("short", "long")


def latest(tx: Transaction, session_id: int) -> dict[str, Memory]:
    """The session's current digests by kind (``short``, ``long``); empty when it has none."""
    query = (
        select(SessionDigest.kind, Memory)
        .join(Memory, Memory.id == SessionDigest.memory_id)
        .where(SessionDigest.session_id == session_id, Memory.valid_to.is_(None))
    )
    return dict(tx.execute(query).all())


@dataclass(frozen=True, kw_only=True)
class WindowFact:
    """A fact derived from a message of the window, with where and by whom it was said."""

    memory: Memory
    seq: int
    subject: str


def window_facts(tx: Transaction, session_id: int, after: int, through: int) -> list[WindowFact]:
    """Facts that rest on messages with ``after < seq <= through``, in the order of their first such message."""
    source = select(Memory.id, Memory.seq).where(
        Memory.session_id == session_id, Memory.level == "raw", Memory.seq > after, Memory.seq <= through
    )
    messages = source.subquery()
    first = func.min(messages.c.seq)
    fact_ids = (
        select(Evidence.memory_id, first.label("seq"))
        .join(messages, messages.c.id == Evidence.source_id)
        .where(Evidence.role == "derived_from")
        .group_by(Evidence.memory_id)
        .subquery()
    )
    query = (
        select(Memory, fact_ids.c.seq, PerspectiveRow.subject)
        .join(fact_ids, fact_ids.c.memory_id == Memory.id)
        .join(PerspectiveRow, PerspectiveRow.id == Memory.perspective_id)
        .where(Memory.level == "explicit")
        .order_by(fact_ids.c.seq, Memory.id)
    )
    return [WindowFact(memory=m, seq=seq, subject=subject) for m, seq, subject in tx.execute(query)]


def told(tx: Transaction, memory_ids: Sequence[int]) -> dict[int, tuple[Memory, str]]:
    """Memories that a digest is made from, each with its subject (empty for messages); without those erased."""
    query = (
        select(Memory, func.coalesce(PerspectiveRow.subject, ""))
        .outerjoin(PerspectiveRow, PerspectiveRow.id == Memory.perspective_id)
        .where(Memory.id.in_(memory_ids))
    )
    return {memory.id: (memory, subject) for memory, subject in tx.execute(query)}


@dataclass(frozen=True, kw_only=True)
class NewDigest:
    """A digest pair ready to be stored; it covers messages through ``end_seq``."""

    texts: dict[str, str]
    end_seq: int
    generation: int
    sources: Sequence[int]
    made_by: str


def store(tx: Transaction, session: Session, new: NewDigest) -> list[int]:
    """Store both kinds, superseding the previous ones; ``session`` is locked. Returns the new memory ids.

    The natural key (session, kind, end, generation) and the session's digest end, which only moves forward within a
    generation, keep an older digest from landing after a newer one: then nothing is stored and the list is empty.
    """
    moved = tx.execute(
        update(Session)
        .where(
            Session.id == session.id,
            (Session.digest_generation < new.generation)
            | ((Session.digest_generation == new.generation) & (Session.digest_end_seq < new.end_seq)),
        )
        .values(digest_end_seq=new.end_seq, digest_generation=new.generation)
        .returning(Session.id)
        .execution_options(synchronize_session=False)
    )
    if moved.first() is None:
        return []
    previous = latest(tx, session.id)
    now = datetime.now(UTC)
    memories = [
        {
            "namespace_id": session.namespace_id,
            "session_id": session.id,
            "level": f"summary_{kind}",
            "content": new.texts[kind],
            "tokens": estimate_tokens(new.texts[kind]),
            "confidence": 0.80,
            "occurred_at": now,
            "valid_from": now,
            "made_by": new.made_by,
        }
        for kind in KINDS
    ]
    ids = [memory_id for (memory_id,) in insert_rows(tx, Memory, memories, returning="id")]
    rows = [
        {
            "namespace_id": session.namespace_id,
            "session_id": session.id,
            "memory_id": memory_id,
            "kind": kind,
            "end_seq": new.end_seq,
            "generation": new.generation,
        }
        for kind, memory_id in zip(KINDS, ids, strict=True)
    ]
    insert_rows(tx, SessionDigest, rows)
    namespace_id = session.namespace_id
    facts.link_all(tx, namespace_id, [(digest, source) for digest in ids for source in new.sources], "digested_from")
    for kind, memory_id in zip(KINDS, ids, strict=True):
        if kind in previous:
            _supersede(tx, session, previous[kind].id, memory_id, now)
    return ids


def _supersede(tx: Transaction, session: Session, previous_id: int, memory_id: int, now: datetime) -> None:
    facts.link(tx, session.namespace_id, memory_id, [previous_id], "supersedes")
    tx.execute(
        update(Memory)
        .where(Memory.id == previous_id)
        .values(valid_to=now, superseded_by=memory_id)
        .execution_options(synchronize_session=False)
    )
