"""Storing and reading requests for digests. The table is the outbox of the job ``digest_session``.

An outbox is a table whose rows ask for jobs. A request stays until a run has made the digest. A request is dead when
its job has given up. Otherwise the request is live, and asks for a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, text, update

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DigestRequest, SessionRow
from nexus_tasks.storage.newest import newest
from nexus_tasks.types import as_stored

_ADD = text(
    """
    INSERT INTO digest_requests (namespace_id, session_id, reason)
    SELECT namespace_id, id, :reason FROM sessions WHERE namespace_id = :namespace_id AND id = :session_id FOR KEY SHARE
    """
)
_ADD_ONCE = text(
    """
    INSERT INTO digest_requests (namespace_id, session_id, reason)
    SELECT :namespace_id, :session_id, CAST(:reason AS text)
    WHERE NOT EXISTS (
        SELECT FROM digest_requests WHERE session_id = :session_id AND NOT dead AND reason = CAST(:reason AS text)
    )
    RETURNING id
    """
)


def _row(session: SessionRow, reason: str) -> dict[str, object]:
    return {"namespace_id": session.namespace_id, "session_id": session.id, "reason": reason}


def add(tx: Transaction, session: SessionRow, reason: str) -> None:
    """Request a digest of a session. ``reason``, for example ``session_end``, is stored in the request.

    Nothing is requested when the session was erased since ``session`` was read.
    """
    tx.execute(_ADD, _row(session, reason))


def add_once(tx: Transaction, session: SessionRow, reason: str) -> bool:
    """Request a digest of a session unless it has a live request of this reason. Returns whether it had none.

    The caller has locked the session.
    """
    return tx.execute(_ADD_ONCE, _row(session, reason)).first() is not None


_RENEW = text(
    """
    UPDATE digest_requests SET id = DEFAULT WHERE session_id = :session_id AND NOT dead AND reason = :reason
    RETURNING id
    """
)


def add_behind(tx: Transaction, session: SessionRow, reason: str) -> None:
    """Request a digest of new messages. A live request of this reason gets a new id instead of a second row.

    A digest that is under way deletes only the requests with ids up to the newest that it has read. So it leaves this
    request, and one more digest covers the new messages. The caller has locked the session.
    """
    if tx.execute(_RENEW, {"session_id": session.id, "reason": reason}).first() is None:
        add(tx, session, reason)


_WANT_ROLLOVER = text(
    """
    INSERT INTO digest_requests (namespace_id, session_id, reason)
    SELECT s.namespace_id, s.id, 'rollover'
    FROM sessions s CROSS JOIN LATERAL (
        SELECT count(*) AS messages, coalesce(sum(tokens), 0) AS tokens FROM (
            -- More messages than these change no answer, and a long session has thousands.
            SELECT tokens FROM memories m
            WHERE m.namespace_id = s.namespace_id AND m.session_id = s.id AND m.level = 'raw'
              AND m.seq > s.digest_end_seq
            ORDER BY m.seq LIMIT :messages
        ) AS m
    ) new
    WHERE s.id = :session_id AND (new.messages >= :messages OR new.tokens >= :tokens)
      AND NOT EXISTS (SELECT FROM digest_requests d WHERE d.session_id = s.id AND NOT d.dead)
    """
)


def want_rollover(tx: Transaction, session_id: int, *, messages: int, tokens: int) -> None:
    """Request a digest of a session if at least ``messages`` messages or ``tokens`` tokens came after its last digest.

    A session that has a live request gets no second request. Call this function in each transaction that derives
    messages or stores a digest.
    """
    tx.execute(_WANT_ROLLOVER, {"session_id": session_id, "messages": messages, "tokens": tokens})


@dataclass(frozen=True, kw_only=True)
class PendingRequests:
    """The requests of a session.

    ``reasons`` are the reasons of the live requests. ``through`` is the id of the newest request, live or dead. It is 0
    when the session has no request.
    """

    reasons: tuple[str, ...]
    through: int


_PENDING = text(
    """
    SELECT coalesce(array_agg(DISTINCT reason) FILTER (WHERE NOT dead), '{}') AS reasons,
           coalesce(max(id), 0) AS through
    FROM digest_requests WHERE session_id = :session_id
    """
)


def pending(tx: Transaction, session_id: int) -> PendingRequests:
    """Read the session's requests. The run that makes the digest later deletes the requests up to ``through``."""
    found = tx.execute(_PENDING, {"session_id": session_id}).one()
    return PendingRequests(reasons=tuple(found.reasons), through=found.through)


_SATISFY = text("DELETE FROM digest_requests WHERE session_id = :session_id AND id <= :through")


def satisfy(tx: Transaction, session_id: int, through: int) -> None:
    """Delete the session's requests whose ids are at most ``through``, because a run has made the digest."""
    tx.execute(_SATISFY, {"session_id": session_id, "through": through})


_KEEP = text(
    """
    UPDATE digest_requests SET reason = 'manual_digest'
    WHERE session_id = :session_id AND id <= :through AND reason = 'manual_rebuild'
    """
)
_ADD_UNLESS_KEPT = text(
    """
    INSERT INTO digest_requests (namespace_id, session_id, reason)
    SELECT :namespace_id, :session_id, 'manual_digest'
    WHERE NOT EXISTS (SELECT FROM digest_requests WHERE session_id = :session_id AND NOT dead)
    """
)


def keep_for_the_rest(tx: Transaction, session: SessionRow, through: int) -> None:
    """Let the session's requests ask for one more run, because a run has digested only the beginning of its messages.

    A request for a rebuild becomes one for a digest, so that the next run does not begin at the first message again.
    """
    tx.execute(_KEEP, {"session_id": session.id, "through": through})
    tx.execute(_ADD_UNLESS_KEPT, {"session_id": session.id, "namespace_id": session.namespace_id})


def gave_up(tx: Transaction, session_id: int) -> bool:
    """Whether the session has a dead request."""
    query = select(DigestRequest.id).where(DigestRequest.session_id == session_id, DigestRequest.dead)
    return tx.scalar(query.limit(1)) is not None


_WANTED_PAGE = text(
    """
    SELECT page.id, n.name, s.session_key, page.reason,
           page.created_at < now() - :settled
           OR NOT EXISTS (SELECT FROM derivations d WHERE d.session_id = s.id AND d.state = 'wanted') AS ready
    FROM (SELECT id, session_id, reason, created_at FROM digest_requests WHERE NOT dead AND id > :after
          ORDER BY id LIMIT :limit) AS page
    JOIN sessions AS s ON s.id = page.session_id JOIN namespaces AS n ON n.id = s.namespace_id ORDER BY page.id
    """
)
newest_wanted = newest("digest_requests", "NOT dead")


def wanted(tx: Transaction, after: int, limit: int, settled: timedelta) -> list[tuple[int, str, str, str, bool]]:
    """At most ``limit`` live requests with ids above ``after``, in the order of their ids.

    Each is (request id, namespace, session key, reason, ready). A request of a session with wanted derivations is not
    ready, because a digest of facts is better and cheaper than a digest of messages. The job of the session's last
    derivation then asks for the digest. A request older than ``settled`` is always ready.
    """
    return list(tx.execute(_WANTED_PAGE, {"after": after, "limit": limit, "settled": settled}).all())


def mark(tx: Transaction, namespace_id: int, session_key: str, *, dead: bool) -> None:
    """Make a session's requests dead when the job gives up, or live when the job is retried."""
    session = select(SessionRow.id).where(
        SessionRow.namespace_id == namespace_id, SessionRow.session_key == as_stored(session_key)
    )
    tx.execute(
        update(DigestRequest)
        .where(DigestRequest.session_id == session.scalar_subquery(), DigestRequest.dead.is_(not dead))
        .values(dead=dead)
        .execution_options(synchronize_session=False)
    )
