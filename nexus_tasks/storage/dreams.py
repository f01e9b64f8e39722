"""Dreams: which namespaces are due for one, and the row that outlives a lost chord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DigestRequest, Dream, Namespace, Session

IDLE = timedelta(seconds=600)
MIN_NEW_FACTS = 20
APART = timedelta(hours=1)
AT_LATEST = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Due:
    """A session with something new since its last digest."""

    session_id: int
    session_key: str


def due_sessions(tx: Transaction, namespace_id: int) -> list[Due]:
    """Sessions with messages since their last digest, oldest first."""
    query = (
        select(Session.id, Session.session_key)
        .where(Session.namespace_id == namespace_id, Session.last_seq > Session.digest_end_seq)
        .order_by(Session.id)
    )
    return [Due(session_id=session_id, session_key=key) for session_id, key in tx.execute(query)]


def start(tx: Transaction, namespace_id: int, sessions: Sequence[Due], *, urgency: str) -> int | None:
    """Open a dream and ask for its digests; ``None`` while another one of the namespace is open."""
    opened = tx.scalar(
        insert(Dream)
        .values(namespace_id=namespace_id, urgency=urgency, sessions=[due.session_id for due in sessions])
        .on_conflict_do_nothing()
        .returning(Dream.id)
    )
    if opened is not None and sessions:
        rows = [
            {"namespace_id": namespace_id, "session_id": due.session_id, "reason": "dream_digest"} for due in sessions
        ]
        insert_rows(tx, DigestRequest, rows)
    return opened


def get(tx: Transaction, namespace_id: int, dream_id: int, *, lock: bool = False) -> Dream | None:
    """A dream of the namespace, or ``None``."""
    query = select(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id)
    return tx.scalar(query.with_for_update() if lock else query)


def unfinished(tx: Transaction, dream: Dream) -> int:
    """How many of a dream's digests are still to come; those that gave up do not hold it back."""
    query = select(func.count(func.distinct(DigestRequest.session_id))).where(
        DigestRequest.session_id.in_(dream.sessions), DigestRequest.reason == "dream_digest", ~DigestRequest.dead
    )
    return int(tx.scalar(query) or 0)


def finish(tx: Transaction, dream_id: int) -> None:
    """Close a dream."""
    tx.execute(update(Dream).where(Dream.id == dream_id).values(state="finished", finished_at=datetime.now(UTC)))


def open_dreams(tx: Transaction, after: int, limit: int) -> list[tuple[int, str]]:
    """Id and namespace of open dreams whose digests have all been made, from id ``after`` on: their chord was lost."""
    waiting = (
        select(DigestRequest.id)
        .where(
            DigestRequest.session_id == func.any(Dream.sessions),
            DigestRequest.reason == "dream_digest",
            ~DigestRequest.dead,
        )
        .correlate(Dream)
        .exists()
    )
    query = (
        select(Dream.id, Namespace.name)
        .join(Namespace, Namespace.id == Dream.namespace_id)
        .where(Dream.id > after, Dream.state == "open", ~waiting)
        .order_by(Dream.id)
        .limit(limit)
    )
    return list(tx.execute(query).all())


# Per namespace: the last dream, the newest message, facts and messages since.
_DUE = text(
    """
    SELECT n.name
    FROM namespaces AS n
    LEFT JOIN LATERAL (
        SELECT max(started_at) AS at, bool_or(state = 'open') AS open FROM dreams WHERE namespace_id = n.id
    ) AS last ON true
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE level = 'explicit') AS facts, count(*) AS memories
        FROM memories WHERE namespace_id = n.id AND level IN ('raw', 'explicit')
          AND created_at > coalesce(last.at, '-infinity')
    ) AS new
    CROSS JOIN LATERAL (
        SELECT max(created_at) AS at FROM memories WHERE namespace_id = n.id AND level = 'raw'
    ) AS newest
    WHERE NOT coalesce(last.open, false)
      AND (last.at IS NULL OR last.at < now() - :apart)
      AND ((newest.at < now() - :idle AND new.facts >= :min_new)
           OR (new.memories > 0 AND coalesce(last.at, n.created_at) < now() - :at_latest))
    ORDER BY n.id
    """
)


def due(tx: Transaction) -> list[str]:
    """Namespaces that should dream now: idle with enough new facts, or not dreamed for a day with anything new."""
    rows = tx.execute(_DUE, {"apart": APART, "idle": IDLE, "min_new": MIN_NEW_FACTS, "at_latest": AT_LATEST})
    return [name for (name,) in rows]
