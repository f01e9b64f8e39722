"""End the sessions of coding agents that nobody goes on with.

An agent that was killed reports no end, and some agents never report one. A later message opens the session again.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NamespaceMoved, NamespaceMoving
from nexus_tasks.services.ingestion import SessionWriter
from nexus_tasks.storage import namespaces, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, SessionRow
from nexus_tasks.transcripts import context_file
from nexus_tasks.types import check_name, check_namespace

IDLE = timedelta(hours=4)  # chosen by hand: longer than a lunch, and shorter than a night


def end(deployment: Deployment) -> int:
    """End the open sessions of this machine's coding agents whose last message was stored more than four hours ago.

    The sessions are those that have a context file: the last 50 of the last seven days.

    Returns:
        The number of sessions that this call ended.

    Raises:
        StorageUnavailable: Postgres does not answer.
    """
    asked = context_file.sessions_asked_for(str(deployment.settings.home))
    return sum(_end(deployment, name, session_key) for name, session_key in asked)


def _end(deployment: Deployment, name: str, session_key: str) -> bool:
    try:
        check_namespace(name), check_name("session_key", session_key)
        with deployment.database.transaction() as tx:
            known = namespaces.find(tx, name)
            session = sessions.find(tx, known.id, session_key) if known else None
            if known is None or session is None or not _is_idle(tx, session):
                return False
            writer = SessionWriter(deployment, tx, known, session_key)
            session = sessions.get(tx, known.id, session_key, lock=True)
            if not _is_idle(tx, session):  # a message came before the lock
                return False
            writer.end(session)
    except (InvalidInput, NamespaceMoved, NamespaceMoving):  # no name that a hook wrote, or another cell ends it
        return False
    writer.enqueue()
    return True


def _is_idle(tx: Transaction, session: SessionRow) -> bool:
    """Whether an open session got no message for four hours, by the clock of Postgres."""
    said = select(Memory.created_at).where(Memory.session_id == session.id, Memory.level == "raw")
    last = tx.scalar(said.order_by(Memory.seq.desc()).limit(1)) or session.created_at
    return session.ended_at is None and bool(tx.scalar(select(func.now() - IDLE > last)))
