"""Storing and reading the table ``extractions``: how far extraction has read the messages of each session.

Extraction has two extractors. One writes topics (files of knowledge), and the other writes facts. The table is also the
outbox of the job ``extract_session``: each row with the state ``wanted`` asks for a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage import sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Extraction, Namespace, SessionRow
from nexus_tasks.storage.newest import newest

Extractor = Literal["topics", "facts"]


def find(tx: Transaction, session_id: int, *, lock: bool = False) -> Extraction | None:
    """Read the session's row from Postgres. Returns ``None`` when no extraction of the session was ever requested.

    With ``lock`` the row stays locked until the transaction ends.
    """
    query = select(Extraction).where(Extraction.session_id == session_id).execution_options(populate_existing=True)
    return tx.scalar(query.with_for_update() if lock else query)


def last_read_seq(row: Extraction, extractor: Extractor) -> int:
    """The ``seq`` of the last message that the extractor (``topics`` or ``facts``) has read."""
    return row.topics_through_seq if extractor == "topics" else row.facts_through_seq


_WANT = text(
    """
    UPDATE extractions SET state = 'wanted'
    WHERE session_id = :session_id AND state <> 'dead'
      AND least(topics_through_seq, facts_through_seq) < (SELECT last_seq FROM sessions WHERE id = :session_id)
    RETURNING id
    """
)


def want(tx: Transaction, session: SessionRow, *, known_only: bool = False) -> bool:
    """Make a session's extraction wanted. Returns whether the extraction is wanted now.

    The extraction does not become wanted when the extractors have read all messages, or when the job gave up.

    Args:
        known_only: change nothing when no extraction of the session was ever requested.
    """
    if not known_only:
        there = select(SessionRow.namespace_id, SessionRow.id).where(SessionRow.id == session.id)
        there = there.with_for_update(read=True, key_share=True)  # or the session was erased meanwhile
        made = upsert(Extraction).from_select(["namespace_id", "session_id"], there, include_defaults=False)
        tx.execute(made.on_conflict_do_nothing())
    noted = tx.execute(_WANT, {"session_id": session.id})
    return noted.first() is not None


def settle(tx: Transaction, row: Extraction, state: Literal["idle", "held"]) -> None:
    """Set the state of an extraction to ``idle`` or ``held``. In these states, the row asks for no job.

    Call this function in the transaction that found nothing to extract. The caller has locked the session.
    """
    if row.state != state:
        _set(tx, row.id, state=state)


def advance(tx: Transaction, seen: Extraction, extractor: Extractor, through: int, rejected: int) -> bool:
    """Move an extractor's cursor (the last ``seq`` that the extractor has read) to ``through``.

    Returns ``False`` and changes nothing when another run or an erasure moved the cursor after ``seen`` was read.

    Args:
        seen: the row as the caller read it before its work.
        rejected: the number of rejected items of the model's answer, which is added to the row's count.
    """
    cursor = getattr(Extraction, f"{extractor}_through_seq")
    moved = tx.execute(
        update(Extraction)
        .where(Extraction.id == seen.id, cursor == last_read_seq(seen, extractor))
        .values({cursor: through, "rejected": Extraction.rejected + rejected, "updated_at": func.now()})
        .returning(Extraction.id)
        .execution_options(synchronize_session=False)
    )
    return moved.first() is not None


def rewind(tx: Transaction, extractor: Extractor, before: Mapping[int, int]) -> None:
    """Move an extractor's cursors back after an erasure, and make the extractions wanted.

    Args:
        before: session id → ``seq`` of the first message to read again.
    """
    for session_id, seq in sorted(before.items()):
        row = find(tx, session_id, lock=True)
        if row is not None:
            to = min(last_read_seq(row, extractor), seq - 1)
            _set(tx, row.id, state="wanted", **{f"{extractor}_through_seq": to})


def _set(tx: Transaction, row_id: int, **values: Any) -> None:
    tx.execute(
        update(Extraction)
        .where(Extraction.id == row_id)
        .values(**values, updated_at=func.now())
        .execution_options(synchronize_session=False)
    )


def mark(tx: Transaction, namespace_id: int, session_key: str, *, dead: bool) -> None:
    """Set a session's extraction to ``dead`` when its job gave up, or to ``wanted`` for a retry of the job."""
    session = sessions.find(tx, namespace_id, session_key)
    row = find(tx, session.id) if session else None
    if row is not None:
        _set(tx, row.id, state="dead" if dead else "wanted")


def drop(tx: Transaction, namespace_id: int, session_key: str) -> None:
    """Set a session's extraction to ``idle``, because its job was dropped. The next message makes it wanted again."""
    session = sessions.find(tx, namespace_id, session_key)
    row = find(tx, session.id) if session else None
    if row is not None:
        _set(tx, row.id, state="idle")


newest_wanted = newest("extractions", "state = 'wanted'")


def wanted(tx: Transaction, after: int, limit: int) -> list[tuple[int, str, str]]:
    """At most ``limit`` wanted extractions, as (extraction id, namespace, session key), in the order of their ids.

    Args:
        after: only extractions whose id is above this id.
    """
    query = (
        select(Extraction.id, Namespace.name, SessionRow.session_key)
        .join(SessionRow, SessionRow.id == Extraction.session_id)
        .join(Namespace, Namespace.id == Extraction.namespace_id)
        .where(text("extractions.state = 'wanted'"), Extraction.id > after)
        .order_by(Extraction.id)
        .limit(limit)
    )
    return [(row_id, name, key) for row_id, name, key in tx.execute(query)]
