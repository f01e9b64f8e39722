"""Observation logs: what stands in place of a session's old messages, what is ready to, and what is wanted.

Two things only ever move forward: the log's ``observed_through_seq`` and, ahead of it, the end of the chunks. Whoever
changes the log does so by compare-and-set on its generation; the loser reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage import sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import (
    Memory,
    Namespace,
    ObservationChunk,
    ObservationLog,
    ObservationReflection,
    Session,
)

Work = Literal["observing", "reflecting"]
MOST_LISTED = 50  # sessions of a namespace in its status, those that changed last first


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What a model made of messages, or of the log. An empty task or response means that the one before stays."""

    observations: str
    current_task: str
    suggested_response: str
    made_by: str


def log(tx: Transaction, session_id: int, *, lock: bool = False) -> ObservationLog | None:
    """A session's log as it is now, or ``None`` when nothing was ever to be observed in it."""
    query = (
        select(ObservationLog).where(ObservationLog.session_id == session_id).execution_options(populate_existing=True)
    )
    return tx.scalar(query.with_for_update() if lock else query)


def ensure(tx: Transaction, session: Session) -> ObservationLog:
    """A session's log, made when it has none."""
    statement = upsert(ObservationLog).values(namespace_id=session.namespace_id, session_id=session.id)
    tx.execute(statement.on_conflict_do_nothing())
    found = log(tx, session.id)
    assert found is not None
    return found


def chunks(tx: Transaction, session_id: int) -> Sequence[ObservationChunk]:
    """The chunks that are not in the log yet, in their order."""
    query = select(ObservationChunk).where(ObservationChunk.session_id == session_id)
    return tx.scalars(query.order_by(ObservationChunk.from_seq)).all()


def reflection(tx: Transaction, found: ObservationLog) -> ObservationReflection | None:
    """The condensed text that is ready for the log, or ``None``; one made of a text since rewritten does not count."""
    query = select(ObservationReflection).where(ObservationReflection.session_id == found.session_id)
    ready = tx.scalar(query)
    return ready if ready and ready.base_generation >= found.rewritten else None


def reach(tx: Transaction, found: ObservationLog) -> int:
    """The last ``seq`` that is observed, in the log or in a chunk."""
    query = select(func.max(ObservationChunk.through_seq)).where(ObservationChunk.session_id == found.session_id)
    return max(found.observed_through_seq, tx.scalar(query) or 0)


# --- work that was done -----------------------------------------------------------------------------------------------
def buffer(tx: Transaction, seen: ObservationLog, from_seq: int, through_seq: int, noted: Noted) -> bool:
    """Keep a chunk; ``seen`` is the log as it was when its messages were read.

    ``False`` when it is of no use: another run was first, or something it may rest on was erased meanwhile.
    """
    found = log(tx, seen.session_id, lock=True)
    if found is None or found.erasures != seen.erasures or reach(tx, found) != from_seq - 1:
        return False
    tx.execute(
        insert(ObservationChunk).values(
            namespace_id=found.namespace_id,
            session_id=found.session_id,
            from_seq=from_seq,
            through_seq=through_seq,
            observations=noted.observations,
            current_task=noted.current_task,
            suggested_response=noted.suggested_response,
            made_by=noted.made_by,
        )
    )
    return True


def keep_reflection(tx: Transaction, seen: ObservationLog, covered_length: int, noted: Noted) -> bool:
    """Keep a condensed text for the beginning of the log ``seen``; ``False`` when that is not its beginning now."""
    found = log(tx, seen.session_id, lock=True)
    if found is None or found.erasures != seen.erasures or found.rewritten > seen.generation:
        return False
    made = {
        "base_generation": seen.generation,
        "covered_length": covered_length,
        "observations": noted.observations,
        "current_task": noted.current_task,
        "suggested_response": noted.suggested_response,
        "made_by": noted.made_by,
    }
    statement = upsert(ObservationReflection).values(
        namespace_id=found.namespace_id, session_id=found.session_id, **made
    )
    tx.execute(statement.on_conflict_do_update(index_elements=["session_id"], set_=made))
    return True


def reflect_later(tx: Transaction, session_id: int, from_tokens: int) -> None:
    """Let the next reflection wait until the log has this many tokens."""
    tx.execute(
        update(ObservationLog).where(ObservationLog.session_id == session_id).values(reflect_from_tokens=from_tokens)
    )


# --- activation -------------------------------------------------------------------------------------------------------
def activate(tx: Transaction, seen: ObservationLog, **values: Any) -> bool:
    """Make the next generation of the log ``seen``; ``False`` when somebody else has made it."""
    made = tx.execute(
        update(ObservationLog)
        .where(ObservationLog.id == seen.id, ObservationLog.generation == seen.generation)
        .values(generation=seen.generation + 1, updated_at=func.now(), **values)
        .returning(ObservationLog.id)
        .execution_options(synchronize_session=False)
    )
    return made.first() is not None


def drop_chunks(tx: Transaction, session_id: int, through_seq: int) -> None:
    """Delete the chunks that are in the log now."""
    tx.execute(
        delete(ObservationChunk).where(
            ObservationChunk.session_id == session_id, ObservationChunk.through_seq <= through_seq
        )
    )


def drop_reflection(tx: Transaction, session_id: int) -> None:
    """Delete the condensed text that is in the log now."""
    tx.execute(delete(ObservationReflection).where(ObservationReflection.session_id == session_id))


# --- erasure ----------------------------------------------------------------------------------------------------------
def forget_covering(tx: Transaction, session: Session, seq: int) -> dict[str, int]:
    """Remove every observation that may rest on the message ``seq`` of a session, and have the rest observed anew.

    To be called in the transaction that deletes the message, the session locked. The observer is shown the end of what
    was observed before, so whatever was observed after the message goes too. This is the one case in which the log
    begins again. Returns what was removed, by table.
    """
    found = log(tx, session.id, lock=True)
    if found is None:
        return {}
    covered = seq <= found.observed_through_seq
    gone = tx.execute(
        delete(ObservationChunk)
        .where(ObservationChunk.session_id == session.id, (ObservationChunk.through_seq >= seq) | covered)
        .returning(ObservationChunk.id)
    ).all()
    removed = {"observation_chunks": len(gone)} if gone else {}
    values: dict[str, Any] = {"erasures": ObservationLog.erasures + 1, "observing": "wanted"}
    if covered:
        drop_reflection(tx, session.id)
        removed["observation_logs"] = 1
        values |= {"observations": "", "current_task": "", "suggested_response": "", "observed_through_seq": 0}
        values |= {"generation": found.generation + 1, "rewritten": found.generation + 1, "reflect_from_tokens": 0}
    tx.execute(update(ObservationLog).where(ObservationLog.id == found.id).values(**values))
    return removed


# --- the outbox -------------------------------------------------------------------------------------------------------
def want(tx: Transaction, session_id: int, work: Work) -> bool:
    """Note that there is something to do; ``False`` when it is noted already, or gave up."""
    column = getattr(ObservationLog, work)
    noted = tx.execute(
        update(ObservationLog)
        .where(ObservationLog.session_id == session_id, column == "idle")
        .values({work: "wanted"})
        .returning(ObservationLog.id)
        .execution_options(synchronize_session=False)
    )
    return noted.first() is not None


def settle(tx: Transaction, session_id: int, work: Work) -> None:
    """Note that nothing is to do; in the transaction that saw so, with the session or the log locked."""
    column = getattr(ObservationLog, work)
    tx.execute(
        update(ObservationLog)
        .where(ObservationLog.session_id == session_id, column == "wanted")
        .values({work: "idle"})
        .execution_options(synchronize_session=False)
    )


def mark(tx: Transaction, namespace_id: int, session_key: str, work: Work, *, dead: bool) -> None:
    """Take a session's work out of the outbox with its dead letter, or put it back when that is retried."""
    session = sessions.find(tx, namespace_id, session_key)
    if session:
        state = "dead" if dead else "wanted"
        tx.execute(update(ObservationLog).where(ObservationLog.session_id == session.id).values({work: state}))


def wanted(tx: Transaction, work: Work, after: int, limit: int) -> list[tuple[int, str, str]]:
    """Log id, namespace and session key of wanted work, from log id ``after`` on."""
    query = (
        select(ObservationLog.id, Namespace.name, Session.session_key)
        .join(Session, Session.id == ObservationLog.session_id)
        .join(Namespace, Namespace.id == ObservationLog.namespace_id)
        .where(getattr(ObservationLog, work) == "wanted", ObservationLog.id > after)
        .order_by(ObservationLog.id)
        .limit(limit)
    )
    return [(log_id, name, key) for log_id, name, key in tx.execute(query)]


# --- what is shown ----------------------------------------------------------------------------------------------------
def standings(tx: Transaction, namespace_id: int, session_id: int | None = None) -> list[dict[str, Any]]:
    """Each observed session's figures, or one's: its unobserved tail, its chunks, its log. Tokens are estimates."""
    tail = (
        select(func.count().label("messages"), func.coalesce(func.sum(Memory.tokens), 0).label("tokens"))
        .where(
            Memory.session_id == ObservationLog.session_id,
            Memory.level == "raw",
            Memory.role != "system",
            Memory.seq > ObservationLog.observed_through_seq,
        )
        .lateral()
    )
    ready = (
        select(func.count().label("chunks"), func.max(ObservationChunk.through_seq).label("through"))
        .where(ObservationChunk.session_id == ObservationLog.session_id)
        .lateral()
    )
    condensed = select(ObservationReflection.id).where(ObservationReflection.session_id == ObservationLog.session_id)
    query = (
        select(ObservationLog, Session.session_key, tail, ready, condensed.exists())
        .join(Session, Session.id == ObservationLog.session_id)
        .join(tail, Session.id.is_not(None))
        .join(ready, Session.id.is_not(None))
        .where(ObservationLog.namespace_id == namespace_id)
        .order_by(ObservationLog.updated_at.desc(), ObservationLog.id.desc())
        .limit(MOST_LISTED)
    )
    if session_id is not None:
        query = query.where(ObservationLog.session_id == session_id)
    return [
        {
            "session_key": key,
            "generation": found.generation,
            "observed_through": found.observed_through_seq,
            "tail_messages": int(messages),
            "tail_tokens": int(tokens),
            "chunks": int(count),
            "buffered_through": max(found.observed_through_seq, through or 0),
            "log_tokens": -(-len(found.observations) // 4),
            "reflection_ready": bool(has_reflection),
            "observing": found.observing,
            "reflecting": found.reflecting,
        }
        for found, key, messages, tokens, count, through, has_reflection in tx.execute(query)
    ]
