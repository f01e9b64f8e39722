"""How far each session is extracted, and which are wanted: the outbox of ``extract_session``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage import sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Extraction, Namespace, Session

Extractor = Literal["topics", "facts"]


def find(tx: Transaction, session_id: int, *, lock: bool = False) -> Extraction | None:
    """How far a session is extracted, as it is now; ``None`` when nobody has ever asked for it."""
    query = select(Extraction).where(Extraction.session_id == session_id).execution_options(populate_existing=True)
    return tx.scalar(query.with_for_update() if lock else query)


def reached(row: Extraction, extractor: Extractor) -> int:
    """The ``seq`` through which an extractor has read."""
    return row.topics_through_seq if extractor == "topics" else row.facts_through_seq


def want(tx: Transaction, session: Session, *, known_only: bool = False) -> bool:
    """Note that a session is to be extracted from; ``False`` when there is nothing new, or its job gave up.

    With ``known_only`` only a session that somebody has asked for before.
    """
    if not known_only:
        made = upsert(Extraction).values(namespace_id=session.namespace_id, session_id=session.id)
        tx.execute(made.on_conflict_do_nothing())
    last = select(Session.last_seq).where(Session.id == session.id).scalar_subquery()
    noted = tx.execute(
        update(Extraction)
        .where(
            Extraction.session_id == session.id,
            Extraction.state != "dead",
            func.least(Extraction.topics_through_seq, Extraction.facts_through_seq) < last,
        )
        .values(state="wanted")
        .returning(Extraction.id)
        .execution_options(synchronize_session=False)
    )
    return noted.first() is not None


def again(tx: Transaction, session_id: int) -> bool:
    """After a message was stored: whether the extraction was held back until then, and is wanted now."""
    noted = tx.execute(
        update(Extraction)
        .where(Extraction.session_id == session_id, Extraction.state == "held")
        .values(state="wanted")
        .returning(Extraction.id)
        .execution_options(synchronize_session=False)
    )
    return noted.first() is not None


def settle(tx: Transaction, row: Extraction, state: Literal["idle", "held"]) -> None:
    """Note that nothing is to do now; in the transaction that saw so, with the session locked."""
    if row.state != state:
        _set(tx, row.id, state=state)


def advance(tx: Transaction, seen: Extraction, extractor: Extractor, through: int, rejected: int) -> bool:
    """Move a cursor from where it was ``seen``; ``False`` when another run, or an erasure, has moved it meanwhile."""
    cursor = getattr(Extraction, f"{extractor}_through_seq")
    moved = tx.execute(
        update(Extraction)
        .where(Extraction.id == seen.id, cursor == reached(seen, extractor))
        .values({cursor: through, "rejected": Extraction.rejected + rejected, "updated_at": func.now()})
        .returning(Extraction.id)
        .execution_options(synchronize_session=False)
    )
    return moved.first() is not None


def put_back(tx: Transaction, extractor: Extractor, before: Mapping[int, int]) -> None:
    """Have sessions extracted anew from a ``seq`` on (session id → that ``seq``), for what was erased."""
    for session_id, seq in sorted(before.items()):
        row = find(tx, session_id, lock=True)
        if row is not None:
            to = min(reached(row, extractor), seq - 1)
            _set(tx, row.id, state="wanted", **{f"{extractor}_through_seq": to})


def _set(tx: Transaction, row_id: int, **values: Any) -> None:
    tx.execute(
        update(Extraction)
        .where(Extraction.id == row_id)
        .values(**values, updated_at=func.now())
        .execution_options(synchronize_session=False)
    )


def mark(tx: Transaction, namespace_id: int, session_key: str, *, dead: bool) -> None:
    """Take a session's extraction out of the outbox with its dead letter, or put it back when that is retried."""
    session = sessions.find(tx, namespace_id, session_key)
    row = find(tx, session.id) if session else None
    if row is not None:
        _set(tx, row.id, state="dead" if dead else "wanted")


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, str]]:
    """Row id, namespace and session key of wanted extractions, from row id ``after`` on."""
    query = (
        select(Extraction.id, Namespace.name, Session.session_key)
        .join(Session, Session.id == Extraction.session_id)
        .join(Namespace, Namespace.id == Extraction.namespace_id)
        .where(Extraction.state == "wanted", Extraction.id > after)
        .order_by(Extraction.id)
        .limit(limit)
    )
    return [(row_id, name, key) for row_id, name, key in tx.execute(query)]
