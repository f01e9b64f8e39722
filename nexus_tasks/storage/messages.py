"""Storing the messages of a session, and reading them.

A message is stored as a memory of level ``raw``. The column ``seq`` numbers the messages of a session: 1, 2, 3 and so
on. Only an erasure leaves gaps. With each message, one wanted derivation is stored per observer. A wanted derivation is
a request to derive facts from the message for the observer.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, TextClause, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm.attributes import set_committed_value

from nexus_tasks import limits
from nexus_tasks.storage import answer_bytes, embeddings, sessions
from nexus_tasks.storage.bulk import as_json, insert_statement
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
from nexus_tasks.storage.models import Memory, SessionRow
from nexus_tasks.storage.shown import REACH
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import CitedMemory, Message, Standing, json_size, standing_rank, to_utc

SKEW = timedelta(minutes=1)  # a producer's clock may be this much ahead of ours
_BY_ROLE: Mapping[str, Standing] = {"user": "self", "assistant": "assistant", "tool": "tool", "system": "import"}
UNBOUNDED_SEQ = 2**62  # above the ``seq`` of every message; as a bound it means "through the newest message"


@dataclass(frozen=True, kw_only=True)
class StoredMessages:
    """The result of :func:`store`.

    ``memory_ids`` are the ids of the new messages, in the order of the conversation. ``duplicates`` counts the messages
    that the session had already. ``observers`` are the observers that get facts from the new messages. ``session``
    stays locked until the transaction ends. ``extract`` says that an extraction which was held until the next message
    is wanted now.
    """

    session: SessionRow
    memory_ids: tuple[int, ...]
    duplicates: int
    observers: tuple[str, ...]
    extract: bool


class KnownMessage(NamedTuple):
    """A message that the session has already."""

    memory_id: int
    seq: int
    occurred_at: datetime
    content: str
    author: str
    role: str
    data: Mapping[str, Any] | None
    whole: bool = True  # whether the text and the data were read whole; else it says something else than a message

    def says(self, message: Message) -> bool:
        """Whether ``message`` has the same text, author, role and data."""
        given = message.content, message.author or message.role, message.role, message.data
        return self.whole and (self.content, self.author, self.role, self.data) == given


# Decides about messages whose key the session has with another text, author, role or data. Gets the session, and by
# their keys the stored and the given messages. Returns the keys of the stored messages that it has erased: the given
# messages take their places.
OnChange = Callable[[SessionRow, Mapping[str, tuple[KnownMessage, Message]]], Collection[str]]


def keep_stored(_session: SessionRow, _changed: Mapping[str, tuple[KnownMessage, Message]]) -> Collection[str]:
    """Keep the stored messages. The given messages count as repeats."""
    return ()


def store(
    tx: Transaction,
    namespace_id: int,
    session_key: str,
    messages: Sequence[Message],
    observers: Sequence[str],
    *,
    now: datetime | None = None,
    time_zone: str = "UTC",
    on_change: OnChange = keep_stored,
) -> StoredMessages:
    """Append ``messages`` to a session, except the messages that the session has already.

    A missing session is created. An ended session is reopened when a new message is appended.

    Args:
        observers: the names of the observers that get facts from each new message.
        now: the time of messages that have no ``occurred_at``. Default: the time of this call. For messages from the
            session buffer (files that keep messages while Postgres is away), callers give the time of the buffering.
        time_zone: the time zone of messages that name none.
        on_change: decides about messages whose id the session has with another text, author, role or data.
    """
    session = _locked_session(tx, namespace_id, session_key)
    keys = message_keys(session_key, messages)
    known = _known(tx, session, keys, messages) if session.last_seq else {}
    new: dict[str, Message] = {}
    changed: dict[str, tuple[KnownMessage, Message]] = {}
    for key, message in zip(keys, messages, strict=True):
        if key not in known:
            new.setdefault(key, message)
        elif not known[key].says(message):
            changed[key] = known[key], message
    replaced = on_change(session, changed) if changed else ()
    new |= {key: changed[key][1] for key in replaced}
    places = {key: known[key] for key in replaced}
    rows = _rows(session, new, places, now or datetime.now(UTC), time_zone)
    ids, extract = _append(tx, session, rows, observers, longer=len(new) - len(places)) if rows else ([], False)
    if ids and not observers:
        embeddings.record_gap(tx, namespace_id)  # no derivation will embed these messages, so `embed_memories` must
    return StoredMessages(
        session=session,
        memory_ids=tuple(ids),
        duplicates=len(messages) - len(ids),
        observers=tuple(observers),
        extract=extract,
    )


def message_keys(session_key: str, messages: Sequence[Message]) -> list[str]:
    """The idempotency key of each message: the message's own id, or a hash of the message's fields.

    A counter follows the hash. Two equal messages in one call (for example "ok" and "ok") therefore get different keys.
    """
    seen: Counter[str] = Counter()
    keys = []
    for message in messages:
        if message.id is not None:
            keys.append(f"id:{message.id}")
            continue
        when = to_utc(message.occurred_at).isoformat() if message.occurred_at else ""
        calls = [dict(call) for call in message.tool_calls]
        parts: list[Any] = [session_key, message.role, message.author or message.role, when, message.content, calls]
        parts += [] if message.data is None else [message.data]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        seen[digest] += 1
        keys.append(f"hash:{digest}:{seen[digest]}")
    return keys


def _locked_session(tx: Transaction, namespace_id: int, session_key: str) -> SessionRow:
    known = sessions.find(tx, namespace_id, session_key, lock=True)
    if known is not None:
        return known
    made = upsert(SessionRow).values(namespace_id=namespace_id, session_key=session_key).on_conflict_do_nothing()
    new: SessionRow | None = tx.scalar(made.returning(SessionRow))
    return new or sessions.get(tx, namespace_id, session_key, lock=True)


_LONGEST_CHARACTER = 4  # bytes
_SLACK = 200_000  # bytes that stored texts may be longer, for example because a secret was stored before
_SHOWN = 200  # characters of a text that is not read whole, for an error
_KNOWN = text(
    """
    SELECT message_key, id, seq, occurred_at, CASE WHEN whole THEN content ELSE left(content, :shown) END AS content,
           author, role, CASE WHEN whole THEN data END AS data, whole
    FROM (
        SELECT known.*, sum(more) OVER (ORDER BY more, id) <= :slack AS whole
        FROM (
            SELECT message_key, id, seq, occurred_at, content, author, role, data,
                   greatest(octet_length(content) + coalesce(octet_length(data), 0) - given.most, 0) AS more
            FROM memories
            JOIN unnest(CAST(:keys AS text[]), CAST(:most AS bigint[])) AS given (key, most) ON given.key = message_key
            WHERE namespace_id = :namespace_id AND session_id = :session_id AND level = 'raw'
              AND message_key = ANY(CAST(:keys AS text[]))
        ) AS known
    ) AS known
    """
)


def _known(
    tx: Transaction, session: SessionRow, keys: Sequence[str], messages: Sequence[Message]
) -> dict[str, KnownMessage]:
    """Those of ``keys`` that belong to a stored message of the session: key → message.

    A stored text that is longer than the text of its message is another one, and is not read. Otherwise a call with the
    ids of a thousand long messages would read a gigabyte.
    """
    most = dict.fromkeys(keys, 0)
    for key, message in zip(keys, messages, strict=True):
        size = len(message.content) + (json_size(message) if message.data is not None else 0)
        most[key] = max(most[key], _LONGEST_CHARACTER * size)
    values = {"namespace_id": session.namespace_id, "session_id": session.id, "shown": _SHOWN, "slack": _SLACK}
    rows = tx.execute(_KNOWN, values | {"keys": list(most), "most": list(most.values())}).all()
    return {
        row.message_key: KnownMessage(
            memory_id=row.id,
            seq=row.seq,
            occurred_at=row.occurred_at,
            content=row.content,
            author=row.author,
            role=row.role,
            data=None if row.data is None else json.loads(row.data),
            whole=row.whole,
        )
        for row in rows
    }


def _rows(
    session: SessionRow,
    new: dict[str, Message],
    places: Mapping[str, KnownMessage],
    now: datetime,
    time_zone: str,
) -> list[dict[str, Any]]:
    """The rows of new messages at the end of the session, or at the places of the messages that they replace."""
    # A message from the future counts as said now. Otherwise nothing that is said later could ever replace it.
    present = datetime.now(UTC)
    latest = present + SKEW
    last, rows = session.last_seq, []
    for key, message in new.items():
        place = places.get(key)
        last += place is None
        when = to_utc(message.occurred_at or (place.occurred_at if place else now))
        rows.append(
            {
                "namespace_id": session.namespace_id,
                "session_id": session.id,
                "level": "raw",
                "content": message.content,
                "tokens": estimate_tokens(message.content),
                "occurred_at": min(when, now, present) if when > latest else when,
                "claimed_at": when if when > latest else None,
                "time_zone": message.time_zone or (time_zone if time_zone != "UTC" else None),
                "seq": place.seq if place else last,
                "role": message.role,
                "standing": standing_rank(_BY_ROLE[message.role]),
                "author": message.author or message.role,
                "external_id": message.id,
                "message_key": key,
                "tool_calls": [dict(call) for call in message.tool_calls] or None,
                "data": None if message.data is None else json.dumps(dict(message.data), ensure_ascii=False),
                "expires_at": to_utc(message.expires_at) if message.expires_at else None,
                "erase_expired": message.erase_expired,
            }
        )
    return rows


def _append(
    tx: Transaction, session: SessionRow, rows: Sequence[Mapping[str, Any]], observers: Sequence[str], *, longer: int
) -> tuple[list[int], bool]:
    """Insert the rows of messages. Returns their ids, and whether an extraction that was held is wanted now.

    Args:
        longer: by how many messages the session becomes longer.
    """
    last = session.last_seq + longer
    values = {"session_id": session.id, "observers": list(observers), "last_seq": last, "rows": as_json(rows)}
    found = tx.execute(_append_statement(tuple(rows[0])), values).all()
    # The statement has changed the session's row. The object here gets the same values without a second statement.
    set_committed_value(session, "last_seq", last)
    set_committed_value(session, "ended_at", None)
    return [memory_id for memory_id, _ in found], any(extract for _, extract in found)


@lru_cache(maxsize=4)
def _append_statement(columns: tuple[str, ...]) -> TextClause:
    # One statement, because a round trip to Postgres takes longer than the insert of a message. A new message opens an
    # ended session again. An extraction is `held` while a tool call has no result; the new message may be the result.
    return text(
        f"""
        WITH new AS ({insert_statement(Memory, columns, returning="id, namespace_id, session_id")}),
        wanted AS (
            INSERT INTO derivations (namespace_id, memory_id, session_id, observer)
            SELECT new.namespace_id, new.id, new.session_id, o.name
            FROM new CROSS JOIN unnest(CAST(:observers AS text[])) WITH ORDINALITY AS o (name, position)
            ORDER BY new.id, o.position
        ), longer AS (
            UPDATE sessions SET last_seq = :last_seq, ended_at = NULL WHERE id = :session_id
        ), released AS (
            UPDATE extractions SET state = 'wanted' WHERE session_id = :session_id AND state = 'held' RETURNING id
        )
        SELECT id, EXISTS (SELECT FROM released) FROM new ORDER BY id
        """
    )


@dataclass(frozen=True)
class MessageText:
    """A message or fact for a prompt. For a fact, ``author`` is the fact's subject, and ``role`` is ``fact``."""

    id: int
    seq: int
    author: str
    role: str
    content: str
    occurred_at: datetime
    time_zone: str | None = None  # the speaker's; ``None`` means UTC


# The columns of a MessageText, for a query on ``memories AS m``.
MESSAGE_TEXT_COLUMNS = """m.id, m.seq, coalesce(m.author, m.role, 'user') AS author,
           coalesce(m.role, 'user') AS role, m.content, m.occurred_at, m.time_zone"""


@dataclass(frozen=True, kw_only=True)
class DerivationBatch:
    """A batch: messages of one session to derive facts from, in the order of the conversation, with their context.

    - ``earlier`` are the messages directly before the batch. A message whose derivation gave up is left out, because it
      could also make this model call fail. A message that was ingested for other observers alone is left out, because
      its words could come into the facts of this observer.
    - ``participants`` are the authors of messages with the roles ``user`` and ``assistant``, from the session's first
      message to the end of the batch. They are in the order of their first messages.
    - ``people`` are those of the participants who speak as people, with the role ``user``.
    - ``other_observers`` says whether a message of the batch also has a derivation for another observer.
    """

    session_id: int
    messages: tuple[MessageText, ...]
    earlier: tuple[MessageText, ...]
    participants: tuple[str, ...]
    people: frozenset[str]
    other_observers: bool


_BATCH = text(
    f"""
    WITH batch AS (
        SELECT m.session_id, {MESSAGE_TEXT_COLUMNS} FROM memories m WHERE m.id = ANY(CAST(:ids AS bigint[]))
    ), start AS (
        SELECT session_id, min(seq) AS seq, max(seq) AS last FROM batch GROUP BY session_id
    ), earlier AS (
        SELECT start.session_id, {MESSAGE_TEXT_COLUMNS}
        FROM start CROSS JOIN LATERAL (
            SELECT * FROM memories e
            WHERE e.session_id = start.session_id AND e.level = 'raw' AND e.seq < start.seq
              AND e.seq >= start.last - :reach
            ORDER BY e.seq DESC LIMIT :context
        ) m
        WHERE NOT EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.state = 'dead')
          AND (NOT EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id)
               OR EXISTS (SELECT 1 FROM derivations d WHERE d.memory_id = m.id AND d.observer = :observer))
    )
    SELECT *, true AS wanted FROM batch UNION ALL SELECT *, false FROM earlier ORDER BY seq
    """
)
_CONTEXT = text(
    """
    SELECT ARRAY(SELECT author FROM memories
                 WHERE session_id = :session_id AND level = 'raw' AND role IN ('user', 'assistant') AND seq <= :last
                 GROUP BY author ORDER BY min(seq)) AS participants,
           ARRAY(SELECT DISTINCT author FROM memories
                 WHERE session_id = :session_id AND level = 'raw' AND role = 'user' AND seq <= :last) AS people,
           EXISTS (SELECT 1 FROM derivations
                   WHERE memory_id = ANY(CAST(:ids AS bigint[])) AND observer <> :observer) AS other_observers
    """
)


def derivation_batch(
    tx: Transaction, memory_ids: Sequence[int], observer: str, *, context: int
) -> DerivationBatch | None:
    """Read the given messages and at most ``context`` earlier messages. Erased messages are left out.

    Returns ``None`` when all given messages were erased.
    """
    chosen: list[MessageText] = []
    earlier: list[MessageText] = []
    values = {"ids": list(memory_ids), "context": context, "observer": observer, "reach": REACH}
    for row in tx.execute(_BATCH, values):
        session_id, *columns, wanted = row
        (chosen if wanted else earlier).append(MessageText(*columns))
    if not chosen:
        return None
    values = {"session_id": session_id, "last": chosen[-1].seq, "ids": list(memory_ids), "observer": observer}
    context_row = tx.execute(_CONTEXT, values).one()
    return DerivationBatch(
        session_id=session_id,
        messages=tuple(chosen),
        earlier=tuple(earlier),
        participants=tuple(str(author) for author in context_row.participants),
        people=frozenset(str(author) for author in context_row.people),
        other_observers=context_row.other_observers,
    )


def cited(tx: Transaction, session_id: int, seqs: Collection[int]) -> dict[int, CitedMemory]:
    """The messages of a session at these positions: seq → message. Erased messages are left out."""
    if not seqs:
        return {}
    query = select(Memory.seq, Memory.id, Memory.external_id).where(
        Memory.session_id == session_id, Memory.level == "raw", among(Memory.seq, seqs)
    )
    return {seq or 0: CitedMemory(id=found, external_id=external) for seq, found, external in tx.execute(query)}


def cited_ids(tx: Transaction, session_id: int, seqs: Collection[int]) -> frozenset[int]:
    """The ids of the messages of a session at these positions."""
    return frozenset(one.id for one in cited(tx, session_id, seqs).values())


def _said_in(session_id: int) -> tuple[ColumnElement[bool], ...]:
    """The SQL conditions of a session's messages. The only index in the order of ``seq`` begins with the namespace."""
    its = select(SessionRow.namespace_id).where(SessionRow.id == session_id).scalar_subquery()
    return Memory.namespace_id == its, Memory.session_id == session_id, Memory.level == "raw"


def window(tx: Transaction, session_id: int, after: int, through: int, limit: int | None = None) -> Sequence[Memory]:
    """A session's messages with ``after < seq <= through``, in the order of ``seq``.

    With ``limit`` the result has only the last ``limit`` of these messages.
    """
    query = select(Memory).where(*_said_in(session_id), Memory.seq > after, Memory.seq <= through)
    if limit is None:
        return tx.scalars(query.order_by(Memory.seq)).all()
    return tx.scalars(query.order_by(Memory.seq.desc()).limit(limit)).all()[::-1]


def bounded(
    tx: Transaction, session_id: int, after: int, most: int, *, newest: bool = False
) -> tuple[Sequence[Memory], bool]:
    """The first messages of a session behind ``after``, in the order of ``seq``; with ``newest`` the last ones.

    They are at most ``most`` messages, and have at most 16 MB of text together.

    Returns:
        The messages, and whether there are others behind ``after``.
    """
    size = literal_column(answer_bytes.MESSAGE, BigInteger)
    page = (
        select(Memory.id, Memory.seq, size.label("size"))
        .where(*_said_in(session_id), Memory.seq > after)
        .order_by(Memory.seq.desc() if newest else Memory.seq)
        .limit(most + 1)
        .subquery()
    )
    order = page.c.seq.desc() if newest else page.c.seq
    sized = select(
        page.c.id,
        func.row_number().over(order_by=order).label("place"),
        func.sum(page.c.size).over(order_by=order).label("bytes"),
        func.count().over().label("asked"),
    ).subquery()
    fits = (sized.c.place <= most) & ((sized.c.bytes <= limits.ANSWER_BYTES) | (sized.c.place == 1))
    query = select(Memory, sized.c.asked).join(sized, sized.c.id == Memory.id).where(fits).order_by(Memory.seq)
    rows = tx.execute(query).all()
    return [row[0] for row in rows], bool(rows) and rows[0].asked > len(rows)


def unread(tx: Transaction, session_id: int, after: int, before: int) -> list[tuple[int, int]]:
    """The messages with ``after < seq < before``, without their texts: (``seq``, tokens of the content)."""
    query = (
        select(Memory.seq, Memory.tokens)
        .where(*_said_in(session_id), Memory.seq > after, Memory.seq < before)
        .order_by(Memory.seq)
    )
    return [(seq or 0, tokens) for seq, tokens in tx.execute(query)]
