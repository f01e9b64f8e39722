"""Reading the messages and facts for a session's next digest, and storing the digest.

A digest is the rolling summary of a session, in a short and a long text. When two runs make the same digest, it is
stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, text, update

from nexus_tasks import limits
from nexus_tasks.storage import evidence
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.messages import MESSAGE_TEXT_COLUMNS, MessageText
from nexus_tasks.storage.models import Memory, SessionDigest, SessionRow
from nexus_tasks.text import estimate_tokens

KINDS = ("short", "long")
CONFIDENCE = 0.80  # the confidence (0 to 1) of every digest; the number is chosen by hand, not measured

_LATEST = text(
    """
    SELECT d.kind, m.id, m.content FROM session_digests d JOIN memories m ON m.id = d.memory_id
    WHERE d.session_id = :session_id AND m.valid_to IS NULL
    """
)


def latest(tx: Transaction, session_id: int) -> dict[str, tuple[int, str]]:
    """The session's current digests: kind (``short`` or ``long``) → (memory id, text). Empty if it has no digest."""
    return {kind: (i, content) for kind, i, content in tx.execute(_LATEST, {"session_id": session_id})}


def is_lost(tx: Transaction, session: SessionRow) -> bool:
    """Whether the session's digest was erased, and no digest was made since."""
    return session.digest_end_seq > 0 and not latest(tx, session.id)


@dataclass(frozen=True, kw_only=True)
class WindowItem:
    """A message that a digest covers, or a fact that rests on such a message.

    For a fact, ``text.author`` is the fact's subject, and ``text.seq`` is the lowest ``seq`` of the covered messages
    that the fact rests on.
    """

    text: MessageText
    content_key: str | None = None  # the fact's normalised content; ``None`` for a message
    derived: bool = False  # whether a derivation of the message is done for at least one observer
    given_up: bool = False  # whether a derivation of the message gave up for at least one observer


_FACTS = text(
    """
    WITH said AS (
        SELECT id, seq FROM memories
        WHERE namespace_id = (SELECT namespace_id FROM sessions WHERE id = :session_id)
          AND session_id = :session_id AND level = 'raw' AND seq > :after AND seq <= :through
    ), rests AS (
        SELECT e.memory_id, min(said.seq) AS seq FROM said JOIN evidence e ON e.source_id = said.id
        WHERE e.role = 'derived_from' GROUP BY e.memory_id
    )
    SELECT m.id, rests.seq, p.subject, 'fact', m.content, m.occurred_at, m.content_key
    FROM rests JOIN memories m ON m.id = rests.memory_id JOIN perspectives p ON p.id = m.perspective_id
    WHERE m.level = 'explicit' ORDER BY rests.seq, m.id
    """
)


def window_facts(tx: Transaction, session_id: int, after: int, through: int) -> list[WindowItem]:
    """Facts that rest on the session's messages with ``after < seq <= through``.

    The facts are sorted by the lowest ``seq`` of those messages that each fact rests on.
    """
    rows = tx.execute(_FACTS, {"session_id": session_id, "after": after, "through": through})
    return [WindowItem(text=MessageText(*columns), content_key=key) for *columns, key in rows]


_WINDOW_END = text(
    """
    SELECT max(seq) FILTER (WHERE fits) FROM (
        SELECT seq, place <= :most AND (bytes <= :bytes OR place = 1) AS fits FROM (
            SELECT seq, row_number() OVER (ORDER BY seq) AS place, sum(size) OVER (ORDER BY seq) AS bytes FROM (
                SELECT seq, octet_length(content) AS size FROM memories
                WHERE namespace_id = (SELECT namespace_id FROM sessions WHERE id = :session_id)
                  AND session_id = :session_id AND level = 'raw' AND seq > :after ORDER BY seq LIMIT :most + 1
            ) AS page
        ) AS placed
    ) AS sized
    HAVING NOT bool_and(fits)
    """
)


def window_end(tx: Transaction, session_id: int, after: int, most: int) -> int | None:
    """The ``seq`` of the last message of a window behind ``after``; ``None`` when all messages there fit into it.

    A window has at most ``most`` messages, with at most 16 MB of text together.
    """
    values = {"session_id": session_id, "after": after, "most": most, "bytes": limits.ANSWER_BYTES}
    found: int | None = tx.scalar(_WINDOW_END, values)
    return found


_DERIVED = """EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'done') AS derived"""
_GIVEN_UP = """EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'dead') AS given_up"""
_MESSAGES = text(
    f"""
    SELECT {MESSAGE_TEXT_COLUMNS}, {_DERIVED}, {_GIVEN_UP} FROM memories m
    WHERE m.namespace_id = (SELECT namespace_id FROM sessions WHERE id = :session_id)
      AND m.session_id = :session_id AND m.level = 'raw' AND m.seq > :after AND m.seq <= :through ORDER BY m.seq
    """
)


def window_messages(tx: Transaction, session_id: int, after: int, through: int) -> list[WindowItem]:
    """The session's messages with ``after < seq <= through``, in the order of ``seq``."""
    rows = tx.execute(_MESSAGES, {"session_id": session_id, "after": after, "through": through})
    return [WindowItem(text=MessageText(*columns), derived=derived, given_up=dead) for *columns, derived, dead in rows]


_ITEMS_BY_ID = text(
    f"""
    SELECT m.id, coalesce(m.seq, 0),
           CASE m.level WHEN 'raw' THEN coalesce(m.author, m.role, 'user') ELSE coalesce(p.subject, '') END,
           CASE m.level WHEN 'raw' THEN coalesce(m.role, 'user') ELSE 'fact' END,
           m.content, m.occurred_at, CASE m.level WHEN 'raw' THEN m.time_zone END, {_GIVEN_UP}
    FROM memories m LEFT JOIN perspectives p ON p.id = m.perspective_id
    WHERE m.id = ANY(CAST(:ids AS bigint[]))
    """
)


def items_by_id(tx: Transaction, memory_ids: Sequence[int]) -> dict[int, WindowItem]:
    """Read messages and facts by memory id, as :func:`window_facts` and :func:`window_messages` give them.

    The result leaves out erased memories.
    """
    rows = tx.execute(_ITEMS_BY_ID, {"ids": list(memory_ids)})
    return {columns[0]: WindowItem(text=MessageText(*columns), given_up=dead) for *columns, dead in rows}


_COVERED = text(
    "SELECT min(occurred_at), max(occurred_at), min(standing) FROM memories"
    " WHERE session_id = :session_id AND level = 'raw' AND seq <= :through"
)


@dataclass(frozen=True, kw_only=True)
class NewDigest:
    """A short and a long digest to store. Each covers the session's messages from the first to ``end_seq``.

    ``generation`` rises when the digest of the same messages is made again.
    """

    texts: dict[str, str]  # kind (``short`` or ``long``) → text
    end_seq: int
    generation: int
    sources: Sequence[int]  # ids of the memories that the digests were made from
    made_by: str  # the model


def store(tx: Transaction, session: SessionRow, new: NewDigest) -> list[int]:
    """Store a short and a long digest, and let them supersede the previous digests. The caller has locked ``session``.

    The digests are stored if their generation is higher than the session's, or if the generations are equal and
    ``end_seq`` is higher than the end of the session's digest.

    Returns:
        The new memory ids. The list is empty when the same or a newer digest is stored already.
    """
    moved = tx.execute(
        update(SessionRow)
        .where(
            SessionRow.id == session.id,
            (SessionRow.digest_generation < new.generation)
            | ((SessionRow.digest_generation == new.generation) & (SessionRow.digest_end_seq < new.end_seq)),
        )
        .values(digest_end_seq=new.end_seq, digest_generation=new.generation)
        .returning(SessionRow.id)
        .execution_options(synchronize_session=False)
    )
    if moved.first() is None:
        return []
    previous = latest(tx, session.id)
    first, last, standing = tx.execute(_COVERED, {"session_id": session.id, "through": new.end_seq}).one()
    began = first or datetime.now(UTC)
    now = last or began  # a digest holds from the last message that it covers
    memories = [
        {
            "namespace_id": session.namespace_id,
            "session_id": session.id,
            "level": f"summary_{kind}",
            "content": new.texts[kind],
            "tokens": estimate_tokens(new.texts[kind]),
            "confidence": CONFIDENCE,
            "occurred_at": now,
            "valid_from": now,
            "event_from": began,
            "event_to": now + timedelta(microseconds=1),  # an event time ends just behind the event
            "made_by": new.made_by,
            "standing": standing,
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
    evidence.link_all(tx, namespace_id, [(digest, source) for digest in ids for source in new.sources], "digested_from")
    for kind, memory_id in zip(KINDS, ids, strict=True):
        if kind in previous:
            _supersede(tx, session, previous[kind][0], memory_id, now)
    return ids


def _supersede(tx: Transaction, session: SessionRow, previous_id: int, memory_id: int, now: datetime) -> None:
    evidence.link(tx, session.namespace_id, memory_id, [previous_id], "supersedes")
    tx.execute(
        update(Memory)
        .where(Memory.id == previous_id)
        .values(valid_to=func.greatest(Memory.valid_from, now), superseded_by=memory_id)
        .execution_options(synchronize_session=False)
    )
