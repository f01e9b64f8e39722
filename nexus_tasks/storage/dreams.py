"""Dreams (scheduled consolidations of a namespace): finding the due namespaces, and the row of each dream.

When a dream's Celery chord is lost, reconcile continues the dream from its row.
"""

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
    SessionRow,
)

# Chosen by hand, not measured.
IDLE = timedelta(seconds=600)  # the time without a new message after which a namespace with new facts is due
MIN_NEW_FACTS = 20  # facts since the last dream
MIN_INTERVAL = timedelta(hours=1)  # between the beginnings of two dreams of a namespace
MAX_INTERVAL = timedelta(hours=24)  # after this time any new memory makes a namespace due


@dataclass(frozen=True, kw_only=True)
class DueSession:
    """A session with messages since its last digest."""

    session_id: int
    session_key: str


def due_sessions(tx: Transaction, namespace_id: int) -> list[DueSession]:
    """Sessions with messages since their last digest, oldest first.

    A session is left out after its digest job gave up, until the session has a newer message than the failed request.
    """
    newest = select(func.max(Memory.created_at)).where(Memory.session_id == SessionRow.id, Memory.level == "raw")
    gave_up = (
        select(DigestRequest.id)
        .where(
            DigestRequest.session_id == SessionRow.id,
            DigestRequest.dead,
            DigestRequest.created_at >= newest.correlate(SessionRow).scalar_subquery(),
        )
        .exists()
    )
    query = (
        select(SessionRow.id, SessionRow.session_key)
        .where(SessionRow.namespace_id == namespace_id, SessionRow.last_seq > SessionRow.digest_end_seq, ~gave_up)
        .order_by(SessionRow.id)
    )
    return [DueSession(session_id=session_id, session_key=key) for session_id, key in tx.execute(query)]


def start(tx: Transaction, namespace_id: int, sessions: Sequence[DueSession], *, urgency: str) -> int | None:
    """Open a dream and request its digests. Returns the dream's id, or ``None`` while another dream is open."""
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


def join_open(tx: Transaction, namespace_id: int, *, urgency: str) -> tuple[int, tuple[str, ...]] | None:
    """Join the namespace's open dream. Urgency ``live`` makes the whole dream live.

    Returns the dream's id and the keys of the sessions that still lack their digest, or ``None`` when no dream is open.
    """
    dream = tx.scalar(select(Dream).where(Dream.namespace_id == namespace_id, Dream.state == "open").with_for_update())
    if dream is None:
        return None
    if urgency == "live":
        dream.urgency = urgency
    requested = select(DigestRequest.session_id).where(*_to_come(dream))
    query = select(SessionRow.session_key).where(SessionRow.id.in_(requested)).order_by(SessionRow.id)
    return dream.id, tuple(tx.scalars(query))


def get(tx: Transaction, namespace_id: int, dream_id: int, *, lock: bool = False) -> Dream | None:
    """A dream of the namespace, or ``None``."""
    query = select(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id)
    return tx.scalar(query.with_for_update() if lock else query)


def digests_to_come(tx: Transaction, dream: Dream) -> int:
    """How many of a dream's sessions wait for their digest. Dead requests do not count."""
    query = select(func.count(func.distinct(DigestRequest.session_id))).where(*_to_come(dream))
    return int(tx.scalar(query) or 0)


def _to_come(dream: Dream) -> tuple[ColumnElement[bool], ...]:
    """The conditions for a live digest request of the dream."""
    return DigestRequest.session_id.in_(dream.sessions), DigestRequest.reason == "dream_digest", ~DigestRequest.dead


def has_reflected(tx: Transaction, dream: Dream) -> bool:
    """Whether ``reflect_namespace`` has finished or given up since the dream began."""
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
    """Perspectives, as (observer, subject), with facts from before the dream that were not reflected on yet.

    A perspective is left out when its reflection gave up or is held for review.
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


def ready_dream(tx: Transaction, namespace_id: int) -> int | None:
    """The id of the namespace's open dream when ``finish_dream`` has work, else ``None``.

    ``finish_dream`` has work when every digest is made, and ``reflect_namespace`` has not run yet. It also has work
    when every digest and every reflection is made.
    """
    dream = tx.scalar(select(Dream).where(Dream.namespace_id == namespace_id, Dream.state == "open"))
    if dream is None or digests_to_come(tx, dream):
        return None
    return None if has_reflected(tx, dream) and reflections_to_come(tx, dream) else dream.id


def finish(tx: Transaction, dream_id: int) -> None:
    """Close a dream."""
    tx.execute(update(Dream).where(Dream.id == dream_id).values(state="finished", finished_at=func.now()))


def mark(tx: Transaction, namespace_id: int, dream_id: int, *, dead: bool) -> None:
    """Close a dream when its ``finish_dream`` gives up, or reopen the dream when ``finish_dream`` is retried.

    After the closing a new dream can open. A dream is not reopened while the namespace has another open dream.
    """
    if dead:
        finish(tx, dream_id)
        return
    other = select(Dream.id).where(Dream.namespace_id == namespace_id, Dream.state == "open")
    reopened = update(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id, ~other.exists())
    tx.execute(reopened.values(state="open", finished_at=None))


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, int]]:
    """Open dreams with ids above ``after``, as (dream id, namespace, dream id). Each needs a ``finish_dream`` job."""
    query = (
        select(Dream.id, Namespace.name, Dream.id)
        .join(Namespace, Namespace.id == Dream.namespace_id)
        .where(Dream.id > after, Dream.state == "open")
        .order_by(Dream.id)
        .limit(limit)
    )
    return list(tx.execute(query).all())


# Each namespace costs a few entries of indexes, however many memories it has: its last dream, its newest message, its
# newest fact, and, when that fact is new, the fact that is the last of enough new ones.
_DUE = text(
    """
    SELECT n.name
    FROM namespaces AS n
    LEFT JOIN LATERAL (
        SELECT started_at AS at FROM dreams WHERE namespace_id = n.id ORDER BY started_at DESC LIMIT 1
    ) AS dreamt ON true
    CROSS JOIN LATERAL (SELECT coalesce(dreamt.at, '-infinity') AS at) AS last
    LEFT JOIN LATERAL (
        SELECT created_at AS at FROM memories WHERE namespace_id = n.id AND level = 'raw'
        ORDER BY created_at DESC LIMIT 1
    ) AS message ON true
    LEFT JOIN LATERAL (
        SELECT created_at AS at FROM memories WHERE namespace_id = n.id AND level = 'explicit'
        ORDER BY created_at DESC LIMIT 1
    ) AS fact ON true
    LEFT JOIN LATERAL (
        SELECT created_at AS at FROM memories WHERE namespace_id = n.id AND level = 'explicit' AND fact.at > last.at
        ORDER BY created_at DESC OFFSET :others LIMIT 1
    ) AS enough ON true
    WHERE NOT EXISTS (SELECT FROM dreams WHERE namespace_id = n.id AND state = 'open')
      AND last.at < now() - :min_interval
      AND ((message.at < now() - :idle AND enough.at > last.at)
           OR (greatest(message.at, fact.at) > last.at AND coalesce(dreamt.at, n.created_at) < now() - :max_interval))
    ORDER BY n.id
    """
)


def due_namespaces(tx: Transaction) -> list[str]:
    """Namespaces that should dream now.

    A namespace is due when it got no message for the time ``IDLE`` and has ``MIN_NEW_FACTS`` new facts. A namespace
    with any new memory is also due when its last dream began longer ago than ``MAX_INTERVAL``. Without a dream the
    namespace's creation counts. A namespace is never due while its dream is open, nor within ``MIN_INTERVAL`` of the
    beginning of its last dream.
    """
    rows = tx.execute(
        _DUE, {"min_interval": MIN_INTERVAL, "idle": IDLE, "others": MIN_NEW_FACTS - 1, "max_interval": MAX_INTERVAL}
    )
    return [name for (name,) in rows]
