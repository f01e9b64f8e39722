"""Finding the namespaces that are due for a dream, and storing dreams.

A dream is a scheduled consolidation of a namespace: it digests every due session, then reflects. The table of dreams is
the outbox of the job ``finish_dream``: each open dream asks for a job. If a dream's Celery chord is lost, reconcile (a
loop of the workers) continues the dream from its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.many import among
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

# These bounds are chosen by hand, not measured.
IDLE = timedelta(seconds=600)  # the time without a new message after which a namespace with new facts is due
MIN_NEW_FACTS = 20  # the number of facts since the last dream that makes an idle namespace due
MIN_INTERVAL = timedelta(hours=1)  # the least time between the beginnings of two dreams of a namespace
MAX_INTERVAL = timedelta(hours=24)  # this long after the last dream, one new memory makes a namespace due


@dataclass(frozen=True, kw_only=True)
class DueSession:
    """A session with messages that no digest covers."""

    session_id: int
    session_key: str


def due_sessions(tx: Transaction, namespace_id: int) -> list[DueSession]:
    """Sessions with messages that no digest covers, oldest first.

    A session whose digest job gave up is left out until a message arrives that is newer than the request of that job.
    No session of the list can be erased until the transaction ends.
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
        .with_for_update(read=True, key_share=True, of=SessionRow)
    )
    return [DueSession(session_id=session_id, session_key=key) for session_id, key in tx.execute(query)]


def start(tx: Transaction, namespace_id: int, sessions: Sequence[DueSession], *, urgency: str) -> int | None:
    """Open a dream and request the digests of ``sessions``. Returns its id, or ``None`` while another dream is open."""
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
    """Find the namespace's open dream for a caller that asks for a dream.

    If the caller's urgency is ``live`` (a caller waits), the dream's urgency becomes ``live`` too. Returns the dream's
    id and the keys of the sessions that still lack their digest, or ``None`` when no dream is open.
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
    """A dream of the namespace, or ``None``. With ``lock`` the row stays locked until the transaction ends."""
    query = select(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id)
    return tx.scalar(query.with_for_update() if lock else query)


def digests_to_come(tx: Transaction, dream: Dream) -> int:
    """How many of a dream's sessions wait for their digest. A session whose digest job gave up does not count."""
    query = select(func.count(func.distinct(DigestRequest.session_id))).where(*_to_come(dream))
    return int(tx.scalar(query) or 0)


def _to_come(dream: Dream) -> tuple[ColumnElement[bool], ...]:
    """The SQL conditions for a digest request of the dream whose job has not given up."""
    return among(DigestRequest.session_id, dream.sessions), DigestRequest.reason == "dream_digest", ~DigestRequest.dead


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
    """Perspectives, as (observer, subject), with facts from before the dream that no reflection has read.

    A perspective is the set of memories of one observer about one subject. It is left out when its reflection gave up,
    or waits for a person's review.
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
            unreflected | (func.cardinality(PerspectiveRow.again) > 0),
        )
        .order_by(PerspectiveRow.id)
    )
    return [(observer, subject) for observer, subject in tx.execute(query)]


def ready_dream(tx: Transaction, namespace_id: int) -> int | None:
    """The id of the namespace's open dream when ``finish_dream`` has work, else ``None``.

    ``finish_dream`` has work in two cases:

    - Every digest is made, and ``reflect_namespace`` has not run yet, so that the dream must start it.
    - Every digest and every reflection is made, so that the dream must be closed.
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

    When the dream is closed, a new dream can be opened. A dream is not reopened while another dream of the namespace is
    open.
    """
    if dead:
        finish(tx, dream_id)
        return
    other = select(Dream.id).where(Dream.namespace_id == namespace_id, Dream.state == "open")
    reopened = update(Dream).where(Dream.namespace_id == namespace_id, Dream.id == dream_id, ~other.exists())
    tx.execute(reopened.values(state="open", finished_at=None))


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, int]]:
    """At most ``limit`` open dreams with ids above ``after``, as (dream id, namespace, dream id).

    Each dream needs a job ``finish_dream``. The first id is the row's place in the outbox, the last id is the argument.
    """
    query = (
        select(Dream.id, Namespace.name, Dream.id)
        .join(Namespace, Namespace.id == Dream.namespace_id)
        .where(Dream.id > after, Dream.state == "open")
        .order_by(Dream.id)
        .limit(limit)
    )
    return list(tx.execute(query).all())


# For each namespace the statement reads only a few index entries, even if the namespace has many memories: the last
# dream, the newest message and the newest fact. If the newest fact is newer than the last dream, the statement also
# reads the newest MIN_NEW_FACTS facts. Enough facts are new when the oldest of these is newer than the last dream.
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
    WHERE n.residence = 'here'
      AND NOT EXISTS (SELECT FROM dreams WHERE namespace_id = n.id AND state = 'open')
      AND last.at < now() - :min_interval
      AND ((message.at < now() - :idle AND enough.at > last.at)
           OR (greatest(message.at, fact.at) > last.at AND coalesce(dreamt.at, n.created_at) < now() - :max_interval))
    ORDER BY n.id
    """
)


def due_namespaces(tx: Transaction) -> list[str]:
    """Namespaces that should dream now.

    A message or fact is new when it was stored after the beginning of the namespace's last dream. A namespace is due in
    two cases:

    - It got no message for the time ``IDLE``, and has at least ``MIN_NEW_FACTS`` new facts.
    - It has a new message or fact, and its last dream began longer ago than ``MAX_INTERVAL``. If the namespace has had
      no dream, the time of its creation counts instead.

    A namespace is not due while a dream of it is open, or while its last dream began less than ``MIN_INTERVAL`` ago.
    """
    rows = tx.execute(
        _DUE, {"min_interval": MIN_INTERVAL, "idle": IDLE, "others": MIN_NEW_FACTS - 1, "max_interval": MAX_INTERVAL}
    )
    return [name for (name,) in rows]
