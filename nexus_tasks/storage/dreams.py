"""Dreams: which namespaces are due for one, and the row that outlives a lost chord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import (
    DeadLetter,
    DigestRequest,
    Dream,
    JobRun,
    Memory,
    Namespace,
    PerspectiveRow,
    Session,
)

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
    """Sessions with messages since their last digest, oldest first; not those whose digest gave up on just these."""
    newest = select(func.max(Memory.created_at)).where(Memory.session_id == Session.id, Memory.level == "raw")
    gave_up = (
        select(DigestRequest.id)
        .where(
            DigestRequest.session_id == Session.id,
            DigestRequest.dead,
            DigestRequest.created_at >= newest.correlate(Session).scalar_subquery(),
        )
        .exists()
    )
    query = (
        select(Session.id, Session.session_key)
        .where(Session.namespace_id == namespace_id, Session.last_seq > Session.digest_end_seq, ~gave_up)
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


def join(tx: Transaction, namespace_id: int, *, urgency: str) -> tuple[int, tuple[str, ...]] | None:
    """The namespace's open dream and its sessions whose digests are to come; ``live`` makes the dream live.

    ``None`` when none is open.
    """
    dream = tx.scalar(select(Dream).where(Dream.namespace_id == namespace_id, Dream.state == "open").with_for_update())
    if dream is None:
        return None
    if urgency == "live":
        dream.urgency = urgency
    wanted = select(DigestRequest.session_id).where(*_to_come(dream))
    query = select(Session.session_key).where(Session.id.in_(wanted)).order_by(Session.id)
    return dream.id, tuple(tx.scalars(query))


def get(tx: Transaction, namespace_id: int, dream_id: int, *, lock: bool = False) -> Dream | None:
    """A dream of the namespace, or ``None``."""
    query = select(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id)
    return tx.scalar(query.with_for_update() if lock else query)


def digests_to_come(tx: Transaction, dream: Dream) -> int:
    """How many of a dream's digests are still to come; those that gave up do not hold it back."""
    query = select(func.count(func.distinct(DigestRequest.session_id))).where(*_to_come(dream))
    return int(tx.scalar(query) or 0)


def _to_come(dream: Dream) -> tuple[ColumnElement[bool], ...]:
    """What a digest request of the dream that is still to be met fulfils."""
    return DigestRequest.session_id.in_(dream.sessions), DigestRequest.reason == "dream_digest", ~DigestRequest.dead


def has_reflected(tx: Transaction, dream: Dream) -> bool:
    """Whether ``reflect_namespace`` has run since the dream began, or gave up."""
    run = select(JobRun.id).where(
        JobRun.namespace_id == dream.namespace_id,
        JobRun.kind == "reflect_namespace",
        JobRun.finished_at >= dream.started_at,
    )
    letter = select(DeadLetter.id).where(
        DeadLetter.namespace_id == dream.namespace_id,
        DeadLetter.kind == "reflect_namespace",
        DeadLetter.last_at >= dream.started_at,
    )
    return tx.scalar(run.limit(1)) is not None or tx.scalar(letter.limit(1)) is not None


def reflections_to_come(tx: Transaction, dream: Dream) -> list[tuple[str, str]]:
    """Observer and subject of perspectives with facts from before the dream that have not been reflected on.

    Those that gave up, or are held for review, do not hold the dream back; nor do facts that came after it began.
    """
    unreflected = (
        select(Memory.id)
        .where(
            Memory.perspective_id == PerspectiveRow.id,
            Memory.level == "explicit",
            Memory.id > PerspectiveRow.reflected_through,
            Memory.created_at <= dream.started_at,
        )
        .exists()
    )
    query = (
        select(PerspectiveRow.observer, PerspectiveRow.subject)
        .where(
            PerspectiveRow.namespace_id == dream.namespace_id,
            PerspectiveRow.held.is_(None),
            ~PerspectiveRow.dead,
            unreflected,
        )
        .order_by(PerspectiveRow.id)
    )
    return [(observer, subject) for observer, subject in tx.execute(query)]


def waits_for_nothing(tx: Transaction, namespace_id: int) -> int | None:
    """The namespace's open dream when the next step of it can be taken: none of what it waits for is to come."""
    dream = tx.scalar(select(Dream).where(Dream.namespace_id == namespace_id, Dream.state == "open"))
    if dream is None or digests_to_come(tx, dream):
        return None
    return None if has_reflected(tx, dream) and reflections_to_come(tx, dream) else dream.id


def finish(tx: Transaction, dream_id: int) -> None:
    """Close a dream."""
    tx.execute(update(Dream).where(Dream.id == dream_id).values(state="finished", finished_at=func.now()))


def mark(tx: Transaction, namespace_id: int, dream_id: int, *, dead: bool) -> None:
    """Close a dream whose own job gave up, so that the next one may open; or open it again, unless one has."""
    if dead:
        finish(tx, dream_id)
        return
    other = select(Dream.id).where(Dream.namespace_id == namespace_id, Dream.state == "open")
    reopened = update(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id, ~other.exists())
    tx.execute(reopened.values(state="open", finished_at=None))


def open_dreams(tx: Transaction, after: int, limit: int) -> list[tuple[int, str]]:
    """Id and namespace of open dreams, from id ``after`` on: each has a job that sees it to its end."""
    query = (
        select(Dream.id, Namespace.name)
        .join(Namespace, Namespace.id == Dream.namespace_id)
        .where(Dream.id > after, Dream.state == "open")
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
