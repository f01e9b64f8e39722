"""Reading and ending sessions (conversations), and counting the background work of each session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, select, text
from sqlalchemy.orm.attributes import set_committed_value

from nexus_tasks.errors import NotFound
from nexus_tasks.storage import answer_bytes, digest_requests
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, Memory, SessionRow
from nexus_tasks.types import DigestText, ObservationStats, SaidMessage, SessionDetails, SessionInfo, as_stored

_FIND = select(SessionRow).where(
    SessionRow.namespace_id == bindparam("namespace_id"), SessionRow.session_key == bindparam("session_key")
)
# With ``populate_existing``, the row is read again after the lock is taken, because another transaction may have
# changed the row after this transaction first read it.
_FIND_AND_LOCK = _FIND.with_for_update().execution_options(populate_existing=True)


_ONE_DERIVATION = text("SELECT pg_advisory_xact_lock(hashtextextended('nexus derivation of a session', :session_id))")


def lock_existing(tx: Transaction, session_id: int) -> None:
    """Lock a session, if it exists, until the transaction ends, so that no other transaction erases it.

    One transaction at a time has this lock. Many could share a lock of the row, and Postgres gives a shared lock to
    each newcomer, although a writer waits for the row. While the transactions overlapped, no message could be stored in
    the session, and no erasure could begin.
    """
    tx.execute(_ONE_DERIVATION, {"session_id": session_id})
    tx.execute(select(SessionRow.id).where(SessionRow.id == session_id).with_for_update(read=True, key_share=True))


def find(tx: Transaction, namespace_id: int, session_key: str, *, lock: bool = False) -> SessionRow | None:
    """The session, or ``None``. With ``lock`` the row stays locked until the transaction ends."""
    values = {"namespace_id": namespace_id, "session_key": as_stored(session_key)}
    return tx.scalar(_FIND_AND_LOCK if lock else _FIND, values)


def get(tx: Transaction, namespace_id: int, session_key: str, *, lock: bool = False) -> SessionRow:
    """The session. With ``lock`` the row stays locked until the transaction ends.

    Raises:
        NotFound: the namespace has no session of that key.
    """
    found = find(tx, namespace_id, session_key, lock=lock)
    if found is None:
        raise NotFound(f"There is no session {session_key!r} here.", remedy="See `nexus sessions list --namespace NS`.")
    return found


def key_of_memory(tx: Transaction, namespace_id: int, memory_id: int) -> str | None:
    """The key of the session in which a memory was said. ``None``: there is no such memory, or it has no session."""
    query = select(SessionRow.session_key).join(Memory, Memory.session_id == SessionRow.id)
    return tx.scalar(query.where(Memory.namespace_id == namespace_id, Memory.id == memory_id))


_END = text("UPDATE sessions SET ended_at = :ended_at WHERE id = :session_id")


def end(tx: Transaction, session: SessionRow) -> bool:
    """End a session and request its digest. Returns whether this call requested a digest.

    No digest is requested in these cases:

    - All messages of the session are digested.
    - The session had ended before, and a digest for its end is requested already.
    - The session had ended before, and the job of its digest gave up.
    """
    ended_before = session.ended_at is not None
    if not ended_before:
        now = datetime.now(UTC)
        tx.execute(_END, {"session_id": session.id, "ended_at": now})
        set_committed_value(session, "ended_at", now)
    if session.last_seq <= session.digest_end_seq:
        return False
    if not ended_before:
        # A message is new, because it has opened the session again. A digest that is under way does not cover it.
        digest_requests.add_behind(tx, session, "session_end")
        return True
    if digest_requests.gave_up(tx, session.id):
        return False
    return digest_requests.add_once(tx, session, "session_end")


_UNDERIVED = text(
    """
    SELECT count(*) FROM sessions s JOIN derivations d ON d.session_id = s.id AND d.state = 'wanted'
    WHERE s.namespace_id = :namespace_id AND s.session_key = :session_key
    """
)


def count_underived(tx: Transaction, namespace_id: int, session_key: str) -> int:
    """The number of wanted derivations of a session. A message has one derivation for each observer."""
    values = {"namespace_id": namespace_id, "session_key": as_stored(session_key)}
    return int(tx.execute(_UNDERIVED, values).scalar_one())


_WANTED = text(
    "SELECT memory_id, observer FROM derivations WHERE session_id = :session_id AND state = 'wanted' ORDER BY memory_id"
)


def wanted_derivations(tx: Transaction, session_id: int) -> list[tuple[int, str]]:
    """Every wanted derivation of a session as (memory id, observer)."""
    return [(memory_id, observer) for memory_id, observer in tx.execute(_WANTED, {"session_id": session_id})]


@dataclass(frozen=True, kw_only=True)
class SessionBacklog:
    """A session's outstanding work.

    - ``underived`` is the number of wanted derivations.
    - ``digest_reason`` is the reason of the session's digest request. It is ``None`` when the session has no request
      except requests whose job gave up. Of several reasons, a reason other than ``rollover`` is preferred.
    """

    session_key: str
    underived: int
    digest_reason: str | None


_BACKLOG = text(
    """
    SELECT s.session_key,
           (SELECT count(*) FROM derivations WHERE session_id = s.id AND state = 'wanted') AS underived,
           (SELECT reason FROM digest_requests WHERE session_id = s.id AND NOT dead
            ORDER BY reason = 'rollover', reason LIMIT 1) AS digest_reason
    FROM sessions s WHERE s.id = :session_id
    """
)


def backlog(tx: Transaction, session_id: int) -> SessionBacklog:
    """A session's outstanding work, read in one statement."""
    return SessionBacklog(**tx.execute(_BACKLOG, {"session_id": session_id}).one()._mapping)


def count_undigested(tx: Transaction, session: SessionRow) -> tuple[int, int]:
    """Count the messages after the session's last digest, as (number of messages, estimated tokens)."""
    query = select(func.count(), func.coalesce(func.sum(Memory.tokens), 0)).where(
        Memory.namespace_id == session.namespace_id,
        Memory.session_id == session.id,
        Memory.level == "raw",
        Memory.seq > session.digest_end_seq,
    )
    messages, tokens = tx.execute(query).one()
    return int(messages), int(tokens)


def listed(tx: Transaction, namespace_id: int, prefix: str, *, limit: int, offset: int) -> list[SessionInfo]:
    """A page of the sessions whose key begins with ``prefix``, with their counts. The newest session comes first."""
    underived = (
        select(func.count())
        .where(Derivation.session_id == SessionRow.id, Derivation.state == "wanted")
        .scalar_subquery()
    )
    query = (
        select(SessionRow, underived)
        .where(SessionRow.namespace_id == namespace_id, SessionRow.session_key.startswith(prefix, autoescape=True))
        .order_by(SessionRow.id.desc())
        .limit(limit)
        .offset(offset)
    )
    return [SessionInfo(**_figures(session, number)) for session, number in tx.execute(query)]


# The columns of a `SaidMessage`. Whole rows as objects of the ORM take 6 times as long.
_SAID = """
    SELECT id, external_id, seq, coalesce(author, '') AS author, role, occurred_at, content, tool_calls, data
    FROM memories
    WHERE namespace_id = :namespace_id AND session_id = :session_id AND level = 'raw' AND seq > :after AND seq < :before
    """
_SAID_FIELDS = tuple(field.name for field in fields(SaidMessage))
_AMONG = "AND message_key = ANY(CAST(:keys AS text[]))"


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a session's messages: those with ``after < seq < before``, and of these the first or the last ones.

    ``ids`` selects messages with these ids of their producer. ``None`` means no restriction.
    """

    after: int
    before: int
    limit: int
    newest: bool
    ids: Sequence[str] | None


def details(tx: Transaction, session: SessionRow, observation: ObservationStats | None, wanted: Page) -> SessionDetails:
    """A session with its digests, and with a page of its messages, oldest first."""
    said, more = _page(tx, session, wanted)
    digests = tx.scalars(
        select(Memory).where(Memory.session_id == session.id, Memory.level.like("summary%"), Memory.valid_to.is_(None))
    ).all()
    return SessionDetails(
        **_figures(session, count_underived(tx, session.namespace_id, session.session_key)),
        digests={memory.level: DigestText(id=memory.id, content=memory.content) for memory in digests},
        said=tuple(said),
        next_after=(said[-1].seq if said else wanted.after) if more and not wanted.newest else None,
        next_before=(said[0].seq if said else wanted.before) if more and wanted.newest else None,
        observation=observation,
    )


def _page(tx: Transaction, session: SessionRow, wanted: Page) -> tuple[list[SaidMessage], bool]:
    """The messages of a page, oldest first, and whether there are more messages beyond the page.

    A page ends before ``limit`` messages when these have more than 16 MB of text (see ``answer_bytes.py``).
    """
    values: dict[str, Any] = {"after": wanted.after, "before": wanted.before, "limit": wanted.limit + 1}
    values |= {"namespace_id": session.namespace_id, "session_id": session.id}
    if wanted.ids is not None:
        values["keys"] = [f"id:{as_stored(one)}" for one in wanted.ids]
    order = f"ORDER BY seq {'DESC' if wanted.newest else 'ASC'} LIMIT :limit"
    page = f"{_SAID} {_AMONG if wanted.ids is not None else ''} {order}"
    rows = tx.execute(text(answer_bytes.beginning(page, answer_bytes.MESSAGE)), values).all()
    found = [_said(row) for row in rows[: wanted.limit]]
    return found[::-1] if wanted.newest else found, bool(rows) and rows[0].asked > len(found)


def _said(row: Row[Any]) -> SaidMessage:
    found = {name: row._mapping[name] for name in _SAID_FIELDS}
    json_of = {"tool_calls": tuple(row.tool_calls or ()), "data": row.data and json.loads(row.data)}
    return SaidMessage(**{**found, **json_of})


def _figures(session: SessionRow, underived: int) -> dict[str, Any]:
    return {
        "session_key": session.session_key,
        "messages": session.last_seq,
        "digested_through": session.digest_end_seq,
        "underived": underived,
        "open": session.ended_at is None,
        "created_at": session.created_at,
        "ended_at": session.ended_at,
    }
