"""Sessions: reading them, ending them, and asking for their digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, text, update

from nexus_tasks.errors import NotFound
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Derivation, DigestRequest, Memory, Namespace, Session
from nexus_tasks.types import as_stored


def find(tx: Transaction, namespace_id: int, session_key: str, *, lock: bool = False) -> Session | None:
    """The session, or ``None``; with ``lock`` nobody else changes it until the transaction ends."""
    query = select(Session).where(Session.namespace_id == namespace_id, Session.session_key == as_stored(session_key))
    # As it is under the lock: the transaction may have read it before, and others have written since.
    return tx.scalar(query.with_for_update().execution_options(populate_existing=True) if lock else query)


def get(tx: Transaction, namespace_id: int, session_key: str, *, lock: bool = False) -> Session:
    """The session.

    Raises:
        NotFound: the namespace has none of that key.
    """
    found = find(tx, namespace_id, session_key, lock=lock)
    if found is None:
        raise NotFound(f"There is no session {session_key!r} here.", remedy="See `nexus sessions list --namespace NS`.")
    return found


def end(tx: Transaction, session: Session) -> bool:
    """End a session and ask for its digest; ``False`` when nothing is new or the digest is asked for already."""
    ended_before = session.ended_at is not None
    if not ended_before:
        tx.execute(update(Session).where(Session.id == session.id).values(ended_at=datetime.now(UTC)))
    if session.last_seq <= session.digest_end_seq or "session_end" in requests(tx, session.id).reasons:
        return False
    if ended_before and _gave_up(tx, session.id):
        return False  # nothing is new since its digest became a dead letter
    request_digest(tx, session, "session_end")
    return True


def _gave_up(tx: Transaction, session_id: int) -> bool:
    query = select(DigestRequest.id).where(DigestRequest.session_id == session_id, DigestRequest.dead)
    return tx.scalar(query.limit(1)) is not None


def request_digest(tx: Transaction, session: Session, reason: str) -> None:
    """Note that a digest is wanted; the run that makes it deletes the note."""
    tx.execute(insert(DigestRequest).values(namespace_id=session.namespace_id, session_id=session.id, reason=reason))


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Digests that are wanted of a session: the reasons, and the newest request (0: none), dead ones too."""

    reasons: tuple[str, ...]
    through: int


_REQUESTS = text(
    """
    SELECT coalesce(array_agg(DISTINCT reason) FILTER (WHERE NOT dead), '{}') AS reasons,
           coalesce(max(id), 0) AS through
    FROM digest_requests WHERE session_id = :session_id
    """
)


def requests(tx: Transaction, session_id: int) -> Requests:
    """What is asked of a session now: a run satisfies the requests up to ``through``."""
    found = tx.execute(_REQUESTS, {"session_id": session_id}).one()
    return Requests(reasons=tuple(found.reasons), through=found.through)


def count_requested(tx: Transaction, namespace_id: int) -> int:
    """How many sessions of a namespace have a digest to come that somebody asked for."""
    query = select(func.count(func.distinct(DigestRequest.session_id))).where(
        DigestRequest.namespace_id == namespace_id, ~DigestRequest.dead
    )
    return tx.scalar(query) or 0


_SATISFY = text("DELETE FROM digest_requests WHERE session_id = :session_id AND id <= :through")


def satisfy(tx: Transaction, session_id: int, through: int) -> None:
    """Delete the digest requests up to ``through``."""
    tx.execute(_SATISFY, {"session_id": session_id, "through": through})


_UNDERIVED = text(
    """
    SELECT count(*) FROM sessions s JOIN derivations d ON d.session_id = s.id AND d.state = 'wanted'
    WHERE s.namespace_id = :namespace_id AND s.session_key = :session_key
    """
)


def underived(tx: Transaction, namespace_id: int, session_key: str) -> int:
    """How many derivations of a session are wanted."""
    values = {"namespace_id": namespace_id, "session_key": as_stored(session_key)}
    return int(tx.execute(_UNDERIVED, values).scalar_one())


def wanted_memories(tx: Transaction, session_id: int) -> list[tuple[int, str]]:
    """Memory id and observer of every wanted derivation of a session."""
    query = (
        select(Derivation.memory_id, Derivation.observer)
        .where(Derivation.session_id == session_id, Derivation.state == "wanted")
        .order_by(Derivation.memory_id)
    )
    return [(memory_id, observer) for memory_id, observer in tx.execute(query)]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a session has to do: messages to derive, a digest that is asked for, and what is new since the last one."""

    session_key: str
    underived: int
    requested: str | None
    messages: int
    tokens: int


_STANDING = text(
    """
    SELECT s.session_key,
           (SELECT count(*) FROM derivations WHERE session_id = s.id AND state = 'wanted') AS underived,
           (SELECT min(reason) FROM digest_requests WHERE session_id = s.id AND NOT dead) AS requested,
           new.messages, new.tokens
    FROM sessions s CROSS JOIN LATERAL (
        SELECT count(*) AS messages, CAST(coalesce(sum(tokens), 0) AS bigint) AS tokens FROM memories m
        WHERE m.session_id = s.id AND m.level = 'raw' AND m.seq > s.digest_end_seq
    ) new
    WHERE s.id = :session_id
    """
)


def standing(tx: Transaction, session_id: int) -> Standing:
    """A session's standing, in one statement."""
    return Standing(**tx.execute(_STANDING, {"session_id": session_id}).one()._mapping)


def undigested(tx: Transaction, session: Session) -> tuple[int, int]:
    """Raw messages, and their tokens, since the session's last digest."""
    query = select(func.count(), func.coalesce(func.sum(Memory.tokens), 0)).where(
        Memory.session_id == session.id, Memory.level == "raw", Memory.seq > session.digest_end_seq
    )
    messages, tokens = tx.execute(query).one()
    return int(messages), int(tokens)


def every(tx: Transaction, namespace_id: int) -> Sequence[dict[str, Any]]:
    """Each session with its figures, newest first."""
    wanted = (
        select(Derivation.session_id, func.count().label("underived"))
        .where(Derivation.namespace_id == namespace_id, Derivation.state == "wanted")
        .group_by(Derivation.session_id)
        .subquery()
    )
    query = (
        select(Session, func.coalesce(wanted.c.underived, 0))
        .outerjoin(wanted, wanted.c.session_id == Session.id)
        .where(Session.namespace_id == namespace_id)
        .order_by(Session.id.desc())
    )
    return [summary(session, underived) for session, underived in tx.execute(query)]


def summary(session: Session, underived: int) -> dict[str, Any]:
    """A session as the command line shows it."""
    return {
        "session_key": session.session_key,
        "messages": session.last_seq,
        "digested_through": session.digest_end_seq,
        "underived": underived,
        "open": session.ended_at is None,
        "created_at": session.created_at,
        "ended_at": session.ended_at,
    }


def wanted_digests(tx: Transaction, after: int, limit: int, settled: timedelta) -> list[tuple[int, str, str]]:
    """Request id, namespace and session key of digests that are asked for, from request id ``after`` on.

    A session whose messages are still being derived is left to the derivation that comes last, until the request is
    older than ``settled``: a digest of facts is better and cheaper than one of raw text.
    """
    pending = select(Derivation.id).where(Derivation.session_id == Session.id, Derivation.state == "wanted").exists()
    query = (
        select(DigestRequest.id, Namespace.name, Session.session_key)
        .join(Session, Session.id == DigestRequest.session_id)
        .join(Namespace, Namespace.id == Session.namespace_id)
        .where(
            DigestRequest.id > after, ~DigestRequest.dead, ~pending | (DigestRequest.created_at < func.now() - settled)
        )
        .order_by(DigestRequest.id)
        .limit(limit)
    )
    return list(tx.execute(query).all())


def mark_requests(tx: Transaction, namespace_id: int, session_key: str, *, dead: bool) -> None:
    """Take a session's digest requests out of the outbox with the dead letter, or put them back."""
    session = find(tx, namespace_id, session_key)
    if session:
        tx.execute(
            update(DigestRequest)
            .where(DigestRequest.session_id == session.id, DigestRequest.dead.is_(not dead))
            .values(dead=dead)
        )


def details(tx: Transaction, session: Session) -> dict[str, Any]:
    """A session with its messages, oldest first, and its digests."""
    raw = tx.scalars(
        select(Memory).where(Memory.session_id == session.id, Memory.level == "raw").order_by(Memory.seq)
    ).all()
    digests = tx.scalars(
        select(Memory).where(Memory.session_id == session.id, Memory.level.like("summary%"), Memory.valid_to.is_(None))
    ).all()
    return summary(session, underived(tx, session.namespace_id, session.session_key)) | {
        "digests": {memory.level: {"id": memory.id, "content": memory.content} for memory in digests},
        "said": [
            {
                "id": memory.id,
                "external_id": memory.external_id,
                "seq": memory.seq,
                "author": memory.author,
                "role": memory.role,
                "occurred_at": memory.occurred_at,
                "content": memory.content,
            }
            for memory in raw
        ],
    }
