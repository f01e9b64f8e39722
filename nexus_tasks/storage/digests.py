"""Digests: what a session's next one is made from, and storing it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import text, update

from nexus_tasks.storage import facts
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import SAID, Said
from nexus_tasks.storage.models import Memory, Session, SessionDigest
from nexus_tasks.text import estimate_tokens

KINDS = ("short", "long")


_LATEST = text(
    """
    SELECT d.kind, m.id, m.content FROM session_digests d JOIN memories m ON m.id = d.memory_id
    WHERE d.session_id = :session_id AND m.valid_to IS NULL
    """
)


def latest(tx: Transaction, session_id: int) -> dict[str, tuple[int, str]]:
    """The session's current digests by kind (``short``, ``long``), each its id and text; empty when it has none."""
    return {kind: (i, content) for kind, i, content in tx.execute(_LATEST, {"session_id": session_id})}


@dataclass(frozen=True, kw_only=True)
class InWindow:
    """A message of a window, or a fact that rests on one: then ``said`` has its subject, and ``seq`` of the first."""

    said: Said
    content_key: str | None = None  # of a fact
    derived: bool = False  # some observer has facts from this message
    given_up: bool = False  # some observer could have none


_FACTS = text(
    """
    WITH said AS (
        SELECT id, seq FROM memories
        WHERE session_id = :session_id AND level = 'raw' AND seq > :after AND seq <= :through
    ), rests AS (
        SELECT e.memory_id, min(said.seq) AS seq FROM said JOIN evidence e ON e.source_id = said.id
        WHERE e.role = 'derived_from' GROUP BY e.memory_id
    )
    SELECT m.id, rests.seq, p.subject, 'fact', m.content, m.occurred_at, m.content_key
    FROM rests JOIN memories m ON m.id = rests.memory_id JOIN perspectives p ON p.id = m.perspective_id
    WHERE m.level = 'explicit' ORDER BY rests.seq, m.id
    """
)


def window_facts(tx: Transaction, session_id: int, after: int, through: int) -> list[InWindow]:
    """Facts that rest on messages with ``after < seq <= through``, in the order of their first such message."""
    rows = tx.execute(_FACTS, {"session_id": session_id, "after": after, "through": through})
    return [InWindow(said=Said(*told), content_key=key) for *told, key in rows]


_DERIVED = """EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'done') AS derived"""
_GIVEN_UP = """EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'dead') AS given_up"""
_MESSAGES = text(
    f"""
    SELECT {SAID}, {_DERIVED}, {_GIVEN_UP} FROM memories m
    WHERE m.session_id = :session_id AND m.level = 'raw' AND m.seq > :after AND m.seq <= :through ORDER BY m.seq
    """
)


def window_messages(tx: Transaction, session_id: int, after: int, through: int) -> list[InWindow]:
    """Messages with ``after < seq <= through``, in order."""
    rows = tx.execute(_MESSAGES, {"session_id": session_id, "after": after, "through": through})
    return [InWindow(said=Said(*told), derived=derived, given_up=dead) for *told, derived, dead in rows]


_TOLD = text(
    f"""
    SELECT m.id, coalesce(m.seq, 0),
           CASE m.level WHEN 'raw' THEN coalesce(m.author, 'user') ELSE coalesce(p.subject, '') END,
           CASE m.level WHEN 'raw' THEN coalesce(m.role, 'user') ELSE 'fact' END,
           m.content, m.occurred_at, {_GIVEN_UP}
    FROM memories m LEFT JOIN perspectives p ON p.id = m.perspective_id
    WHERE m.id = ANY(CAST(:ids AS bigint[]))
    """
)


def told(tx: Transaction, memory_ids: Sequence[int]) -> dict[int, InWindow]:
    """Memories that a digest is made from; without those erased."""
    rows = tx.execute(_TOLD, {"ids": list(memory_ids)})
    return {told[0]: InWindow(said=Said(*told), given_up=dead) for *told, dead in rows}


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
            _supersede(tx, session, previous[kind][0], memory_id, now)
    return ids


def _supersede(tx: Transaction, session: Session, previous_id: int, memory_id: int, now: datetime) -> None:
    facts.link(tx, session.namespace_id, memory_id, [previous_id], "supersedes")
    tx.execute(
        update(Memory)
        .where(Memory.id == previous_id)
        .values(valid_to=now, superseded_by=memory_id)
        .execution_options(synchronize_session=False)
    )
