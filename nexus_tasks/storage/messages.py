"""Storing messages: raw memories with a gapless ``seq``, and the derivations they make wanted, in one transaction."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage import embeddings, sessions
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Memory, Session
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import Message, to_utc

NEWEST = 2**62  # a ``seq`` that no session reaches


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What storing did. ``memory_ids`` are the new raw memories, in order; ``observers`` want facts from them.

    The ``session`` is locked, and to be read until its transaction ends.
    """

    session: Session
    memory_ids: tuple[int, ...]
    duplicates: int
    observers: tuple[str, ...]


def store(
    tx: Transaction,
    namespace_id: int,
    session_key: str,
    messages: Sequence[Message],
    observers: Sequence[str],
    *,
    now: datetime | None = None,
) -> Stored:
    """Append ``messages`` to a session (made, or opened again, as needed), leaving out those it has already.

    ``now`` is when a message without a time of its own was said: of buffered ones when they came, not the present.
    """
    session = _locked_session(tx, namespace_id, session_key)
    keys = message_keys(session_key, messages)
    known = _known(tx, session, keys) if session.last_seq else set[str]()
    new: dict[str, Message] = {}
    for key, message in zip(keys, messages, strict=True):
        if key not in known:
            new.setdefault(key, message)
    ids = _insert(tx, session, new, now or datetime.now(UTC)) if new else []
    if ids:
        # A message to a session that was ended opens it again. Set on the locked row, which later readers of the
        # transaction need not read once more.
        session.last_seq, session.ended_at = session.last_seq + len(ids), None
        tx.flush()
        rows = [
            {"namespace_id": namespace_id, "memory_id": memory_id, "session_id": session.id, "observer": observer}
            for memory_id in ids
            for observer in observers
        ]
        insert_rows(tx, Derivation, rows)
        if not observers:
            embeddings.leave_gap(tx, namespace_id)  # no derivation comes by to embed them
    return Stored(
        session=session, memory_ids=tuple(ids), duplicates=len(messages) - len(ids), observers=tuple(observers)
    )


def message_keys(session_key: str, messages: Sequence[Message]) -> list[str]:
    """The idempotency key of each message: its own id, else a hash that tells two equal turns of one call apart."""
    seen: Counter[str] = Counter()
    keys = []
    for message in messages:
        if message.id is not None:
            keys.append(f"id:{message.id}")
            continue
        when = to_utc(message.occurred_at).isoformat() if message.occurred_at else ""
        calls = [dict(call) for call in message.tool_calls]
        parts = [session_key, message.role, message.author or message.role, when, message.content, calls]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        seen[digest] += 1
        keys.append(f"hash:{digest}:{seen[digest]}")
    return keys


def _locked_session(tx: Transaction, namespace_id: int, session_key: str) -> Session:
    made = upsert(Session).values(namespace_id=namespace_id, session_key=session_key).on_conflict_do_nothing()
    new: Session | None = tx.scalar(made.returning(Session))
    return new or sessions.get(tx, namespace_id, session_key, lock=True)


def _known(tx: Transaction, session: Session, keys: Sequence[str]) -> set[str]:
    """Those of ``keys`` that messages of the session have already."""
    query = select(Memory.message_key).where(
        Memory.namespace_id == session.namespace_id,
        Memory.session_id == session.id,
        Memory.level == "raw",
        Memory.message_key.in_(keys),
    )
    return {str(key) for key in tx.scalars(query)}


def _insert(tx: Transaction, session: Session, new: dict[str, Message], now: datetime) -> list[int]:
    rows = [
        {
            "namespace_id": session.namespace_id,
            "session_id": session.id,
            "level": "raw",
            "content": message.content,
            "tokens": estimate_tokens(message.content),
            "occurred_at": to_utc(message.occurred_at) if message.occurred_at else now,
            "seq": session.last_seq + position,
            "role": message.role,
            "author": message.author or message.role,
            "external_id": message.id,
            "message_key": key,
            "tool_calls": [dict(call) for call in message.tool_calls] or None,
        }
        for position, (key, message) in enumerate(new.items(), start=1)
    ]
    return [memory_id for (memory_id,) in insert_rows(tx, Memory, rows, returning="id")]


@dataclass(frozen=True)
class Said:
    """A message, or a fact in its place, as a model is shown it."""

    id: int
    seq: int
    author: str
    role: str
    content: str
    occurred_at: datetime


# The columns of a Said, of memories AS m.
SAID = """m.id, m.seq, coalesce(m.author, m.role, 'user') AS author, coalesce(m.role, 'user') AS role, m.content,
           m.occurred_at"""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Messages of one session in the order of the conversation, and what a model needs to know beside them.

    ``earlier`` are those said before, without any that no answer could be had for: they would spoil this one too.
    ``participants`` have spoken up to the end of the batch, in order of first appearance; tools and system prompts are
    left out. ``others``: facts are derived from these messages for other observers too, before or after.
    """

    session_id: int
    said: tuple[Said, ...]
    earlier: tuple[Said, ...]
    participants: tuple[str, ...]
    others: bool


_BATCH = text(
    f"""
    WITH batch AS (
        SELECT m.session_id, {SAID} FROM memories m WHERE m.id = ANY(CAST(:ids AS bigint[]))
    ), start AS (
        SELECT session_id, min(seq) AS seq FROM batch GROUP BY session_id
    ), earlier AS (
        SELECT start.session_id, {SAID}
        FROM start CROSS JOIN LATERAL (
            SELECT * FROM memories e WHERE e.session_id = start.session_id AND e.level = 'raw' AND e.seq < start.seq
            ORDER BY e.seq DESC LIMIT :context
        ) m
        WHERE NOT EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'dead')
    )
    SELECT *, true AS wanted FROM batch UNION ALL SELECT *, false FROM earlier ORDER BY seq
    """
)
_COMPANY = text(
    """
    SELECT ARRAY(SELECT author FROM memories
                 WHERE session_id = :session_id AND level = 'raw' AND role IN ('user', 'assistant') AND seq <= :last
                 GROUP BY author ORDER BY min(seq)) AS participants,
           EXISTS (SELECT 1 FROM derivations
                   WHERE memory_id = ANY(CAST(:ids AS bigint[])) AND observer <> :observer) AS others
    """
)


def batch(tx: Transaction, memory_ids: Sequence[int], observer: str, *, context: int) -> Batch | None:
    """Those of the messages that are still there, with up to ``context`` earlier ones; ``None`` when all are gone."""
    said: list[Said] = []
    earlier: list[Said] = []
    for row in tx.execute(_BATCH, {"ids": list(memory_ids), "context": context}):
        session_id, *told, wanted = row
        (said if wanted else earlier).append(Said(*told))
    if not said:
        return None
    values = {"session_id": session_id, "last": said[-1].seq, "ids": list(memory_ids), "observer": observer}
    company = tx.execute(_COMPANY, values).one()
    return Batch(
        session_id=session_id,
        said=tuple(said),
        earlier=tuple(earlier),
        participants=tuple(str(author) for author in company.participants),
        others=company.others,
    )


def window(tx: Transaction, session_id: int, after: int, through: int, limit: int | None = None) -> Sequence[Memory]:
    """Raw memories with ``after < seq <= through``, in order; with ``limit`` only the last ones."""
    query = select(Memory).where(
        Memory.session_id == session_id, Memory.level == "raw", Memory.seq > after, Memory.seq <= through
    )
    if limit is None:
        return tx.scalars(query.order_by(Memory.seq)).all()
    return tx.scalars(query.order_by(Memory.seq.desc()).limit(limit)).all()[::-1]
