"""Storing and reading the observation logs of sessions. The table is also the outbox of the jobs that write the logs.

- A log is a text of notes that replaces a session's old messages in a prompt.
- A chunk is a row with notes on later messages. The notes are not in the log yet.
- An observation reflection is a shorter text that will replace the beginning of the log.

The log's ``observed_through_seq`` and the end of the chunks move forward. Only an erasure moves them back. A change of
the log is a compare-and-set on the log's generation. When two runs change a log at the same time, the change of the
second run fails, and the second run reads the log again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Select, delete, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import defer

from nexus_tasks.storage import sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import (
    Memory,
    Namespace,
    ObservationChunk,
    ObservationGeneration,
    ObservationLog,
    ObservationReflection,
    SessionRow,
)
from nexus_tasks.types import ObservationStats

# The columns that ask for the two jobs: `observing` for `observe_session`, `reflecting` for `reflect_observations`. A
# column has the state `wanted`, `idle` or `dead`.
Work = Literal["observing", "reflecting"]
MOST_LISTED = 50  # the most observed sessions that a namespace's status lists


@dataclass(frozen=True, kw_only=True)
class ObservedText:
    """A model's notes on messages, or a model's shorter text for a log.

    When ``current_task`` or ``suggested_response`` is empty, the log keeps its present value of the field.
    """

    observations: str
    current_task: str
    suggested_response: str
    made_by: str
    said_at: datetime | None = None  # the time of the newest message that the text covers


def find_log(tx: Transaction, session_id: int, *, lock: bool = False) -> ObservationLog | None:
    """Read a session's log from Postgres. Returns ``None`` when the session was never observed.

    With ``lock`` the session and the log stay locked until the transaction ends. All transactions lock the session
    first. Otherwise two of them would wait for each other: Postgres checks the log's foreign key with a lock of the
    session, also at the second update of the log in one transaction.
    """
    if lock:
        tx.execute(_lock_session(session_id))
    query = _log_of(session_id)
    return tx.scalar(query.with_for_update() if lock else query)


def try_lock(tx: Transaction, session: SessionRow) -> ObservationLog | None:
    """Lock the session and its log without waiting. A missing log is created.

    Returns ``None`` when another transaction has one of the locks.
    """
    tx.execute(text("SET LOCAL lock_timeout = '50ms'"))  # another reader may be creating the log
    at_once = _lock_session(session.id).with_for_update(key_share=True, read=True, skip_locked=True)
    if tx.scalar(at_once) is None:
        return None
    tx.execute(_insert_log(session))
    return tx.scalar(_log_of(session.id).with_for_update(skip_locked=True))


def _log_of(session_id: int) -> Select[ObservationLog]:
    # Read again, because another transaction may have changed the row after this transaction first read it.
    return (
        select(ObservationLog).where(ObservationLog.session_id == session_id).execution_options(populate_existing=True)
    )


def _lock_session(session_id: int) -> Select[int]:
    # The weakest lock that an erasure and the storing of messages respect.
    return select(SessionRow.id).where(SessionRow.id == session_id).with_for_update(key_share=True, read=True)


def _insert_log(session: SessionRow) -> Insert:
    statement = upsert(ObservationLog).values(namespace_id=session.namespace_id, session_id=session.id)
    return statement.on_conflict_do_nothing()


def ensure_log(tx: Transaction, session: SessionRow) -> ObservationLog:
    """A session's log. A missing log is created."""
    tx.execute(_insert_log(session))
    found = find_log(tx, session.id)
    assert found is not None
    return found


def chunks(tx: Transaction, session_id: int) -> Sequence[ObservationChunk]:
    """A session's chunks in the order of the conversation."""
    query = select(ObservationChunk).where(ObservationChunk.session_id == session_id)
    return tx.scalars(query.order_by(ObservationChunk.from_seq)).all()


def usable_reflection(tx: Transaction, found: ObservationLog) -> ObservationReflection | None:
    """The shorter text for the log, or ``None``.

    A shorter text cannot be used when the log's beginning was replaced after the text was made.
    """
    query = select(ObservationReflection).where(ObservationReflection.session_id == found.session_id)
    ready = tx.scalar(query)
    return ready if ready and ready.base_generation >= found.rewritten else None


def last_observed_seq(tx: Transaction, found: ObservationLog) -> int:
    """The ``seq`` of the last message that the log or a chunk covers."""
    query = select(func.max(ObservationChunk.through_seq)).where(ObservationChunk.session_id == found.session_id)
    return max(found.observed_through_seq, tx.scalar(query) or 0)


def is_without_erasures_since(tx: Transaction, seen: ObservationLog) -> bool:
    """Whether no message of the session was erased after ``seen`` was read. The log stays locked until ``tx`` ends."""
    found = find_log(tx, seen.session_id, lock=True)
    return found is not None and found.erasures == seen.erasures


# --- storing a model's text ------------------------------------------------------------------------------------------
def store_chunk(tx: Transaction, seen: ObservationLog, from_seq: int, through_seq: int, noted: ObservedText) -> bool:
    """Store a chunk for the messages ``from_seq`` to ``through_seq``.

    Args:
        seen: the log, which the caller read before it read the messages.
        noted: the notes on these messages.

    Returns:
        ``False`` when nothing was stored. Then another run has observed the messages, or a message of the session was
        erased after ``seen`` was read.
    """
    found = find_log(tx, seen.session_id, lock=True)
    if found is None or found.erasures != seen.erasures or last_observed_seq(tx, found) != from_seq - 1:
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
            said_at=noted.said_at,
        )
    )
    return True


def store_reflection(tx: Transaction, seen: ObservationLog, covered_length: int, noted: ObservedText) -> bool:
    """Store a shorter text for the first ``covered_length`` characters of the log ``seen``.

    Returns ``False`` and stores nothing when the beginning of the log changed after ``seen`` was read.
    """
    found = find_log(tx, seen.session_id, lock=True)
    if found is None or found.erasures != seen.erasures or found.rewritten > seen.generation:
        return False
    made = {
        "base_generation": seen.generation,
        "covered_length": covered_length,
        "observations": noted.observations,
        "current_task": noted.current_task,
        "suggested_response": noted.suggested_response,
        "made_by": noted.made_by,
        "said_at": noted.said_at,
    }
    statement = upsert(ObservationReflection).values(
        namespace_id=found.namespace_id, session_id=found.session_id, **made
    )
    tx.execute(statement.on_conflict_do_update(index_elements=["session_id"], set_=made))
    return True


def delay_reflection(tx: Transaction, session_id: int, from_tokens: int) -> None:
    """Delay the job that shortens the log until the log has ``from_tokens`` tokens. The caller has locked the log."""
    tx.execute(
        update(ObservationLog).where(ObservationLog.session_id == session_id).values(reflect_from_tokens=from_tokens)
    )


# --- activation -------------------------------------------------------------------------------------------------------
def activate(tx: Transaction, seen: ObservationLog, **values: Any) -> bool:
    """Set ``values``, the next generation of the log ``seen``. Returns ``False`` when another run changed the log."""
    made = tx.execute(
        update(ObservationLog)
        .where(ObservationLog.id == seen.id, ObservationLog.generation == seen.generation)
        .values(updated_at=func.now(), **values)
        .returning(ObservationLog.id)
        .execution_options(synchronize_session=False)
    )
    return made.first() is not None


def drop_chunks(tx: Transaction, session_id: int, through_seq: int) -> None:
    """Delete the chunks that end at ``through_seq`` or before. The caller has put these chunks into the log."""
    tx.execute(
        delete(ObservationChunk).where(
            ObservationChunk.session_id == session_id, ObservationChunk.through_seq <= through_seq
        )
    )


def drop_reflection(tx: Transaction, session_id: int) -> None:
    """Delete the session's shorter text. Callers do this when the text is in the log, or can no longer be used."""
    tx.execute(delete(ObservationReflection).where(ObservationReflection.session_id == session_id))


# --- earlier logs -----------------------------------------------------------------------------------------------------
def keep_earlier(
    tx: Transaction, found: ObservationLog, generation: int, text: str, *, through: int, condensed_length: int
) -> None:
    """Keep the text that the log's ``generation`` has replaced. The caller has locked the session and the log.

    Args:
        through: the seq of the last message that the text covers.
        condensed_length: the number of characters of the log that replaced the text.
    """
    tx.execute(
        insert(ObservationGeneration).values(
            namespace_id=found.namespace_id,
            session_id=found.session_id,
            generation=generation,
            observations=text,
            observed_through_seq=through,
            condensed_length=condensed_length,
        )
    )


def earlier(tx: Transaction, session_id: int) -> Sequence[tuple[ObservationGeneration, int]]:
    """The texts that condensations have replaced, the newest first, with their numbers of characters.

    A text is read when it is asked for.
    """
    query = (
        select(ObservationGeneration, func.length(ObservationGeneration.observations))
        .options(defer(ObservationGeneration.observations))
        .where(ObservationGeneration.session_id == session_id)
        .order_by(ObservationGeneration.generation.desc())
    )
    return [(kept, characters) for kept, characters in tx.execute(query)]


def drop_earlier(tx: Transaction, session_id: int, generation: int | None = None) -> int:
    """Delete the text that ``generation`` has replaced, or without a generation all. Returns the number of texts."""
    which = ObservationGeneration.session_id == session_id
    if generation is not None:
        which &= ObservationGeneration.generation == generation
    return len(tx.execute(delete(ObservationGeneration).where(which).returning(ObservationGeneration.id)).all())


# --- the task ---------------------------------------------------------------------------------------------------------
def clear_task(tx: Transaction, found: ObservationLog) -> bool:
    """Clear the current task and the suggested response of a locked log, its chunks and its shorter text.

    Returns whether there was one of them.
    """
    cleared = {"current_task": "", "suggested_response": ""}
    had = bool(found.current_task or found.suggested_response)
    for model in (ObservationChunk, ObservationReflection):
        named = (model.current_task != "") | (model.suggested_response != "")
        changed = update(model).where(model.session_id == found.session_id, named).values(**cleared)
        had = bool(tx.execute(changed.returning(model.id)).all()) or had
    # A new generation: a condensation that is under way then keeps the task of the log.
    times = {"current_task_at": None, "suggested_response_at": None}
    return activate(tx, found, generation=found.generation + 1, **cleared, **times) and had


# --- erasure ----------------------------------------------------------------------------------------------------------
def erase_covering(tx: Transaction, session: SessionRow, seq: int) -> dict[str, int]:
    """Delete all notes of a session that may contain words of the message ``seq``.

    Call this function in the transaction that deletes the message, with the session locked. The prompt for new notes
    contains the end of the earlier notes. Therefore the notes on all later messages are deleted too. When the log
    covers the message, the whole log is emptied. The remaining messages are observed again.

    Returns:
        The number of deleted rows of each table.
    """
    found = find_log(tx, session.id, lock=True)
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
        if gone_earlier := drop_earlier(tx, session.id):
            removed["observation_generations"] = gone_earlier
        values |= {"observations": "", "current_task": "", "suggested_response": "", "observed_through_seq": 0}
        values |= {"current_task_at": None, "suggested_response_at": None}
        values |= {"generation": found.generation + 1, "rewritten": found.generation + 1, "reflect_from_tokens": 0}
    tx.execute(update(ObservationLog).where(ObservationLog.id == found.id).values(**values))
    return removed


# --- the outbox -------------------------------------------------------------------------------------------------------
def want(tx: Transaction, session_id: int, *works: Work) -> bool:
    """Make jobs of a session wanted. ``works`` are the jobs' columns. Returns whether a job became wanted.

    Nothing changes when one of the jobs is wanted already, or gave up.
    """
    idle = [getattr(ObservationLog, work) == "idle" for work in works]
    noted = tx.execute(
        update(ObservationLog)
        .where(ObservationLog.session_id == session_id, *idle)
        .values(dict.fromkeys(works, "wanted"))
        .returning(ObservationLog.id)
        .execution_options(synchronize_session=False)
    )
    return noted.first() is not None


def settle(tx: Transaction, session_id: int, work: Work) -> None:
    """Set the column ``work`` of a session's log from ``wanted`` to ``idle``.

    Call this function in the transaction in which the job found nothing to do. The caller has locked the session or the
    log.
    """
    column = getattr(ObservationLog, work)
    tx.execute(
        update(ObservationLog)
        .where(ObservationLog.session_id == session_id, column == "wanted")
        .values({work: "idle"})
        .execution_options(synchronize_session=False)
    )


def mark(tx: Transaction, namespace_id: int, session_key: str, work: Work, *, dead: bool) -> None:
    """Set the column ``work`` of a session's log to ``dead`` when its job gave up, or to ``wanted`` for a retry."""
    session = sessions.find(tx, namespace_id, session_key)
    if session:
        state = "dead" if dead else "wanted"
        tx.execute(update(ObservationLog).where(ObservationLog.session_id == session.id).values({work: state}))


def drop(tx: Transaction, namespace_id: int, session_key: str, work: Work) -> None:
    """Set the column ``work`` of a session's log to ``idle``, because its job was dropped. It may be wanted again."""
    session = sessions.find(tx, namespace_id, session_key)
    if session:
        tx.execute(update(ObservationLog).where(ObservationLog.session_id == session.id).values({work: "idle"}))


def wanted(tx: Transaction, after: int, limit: int, work: Work) -> list[tuple[int, str, str]]:
    """At most ``limit`` sessions whose logs have ``wanted`` in the column ``work``: (log id, namespace, session key).

    The sessions are in the order of their logs' ids.

    Args:
        after: only logs whose id is above this id.
    """
    query = (
        select(ObservationLog.id, Namespace.name, SessionRow.session_key)
        .join(SessionRow, SessionRow.id == ObservationLog.session_id)
        .join(Namespace, Namespace.id == ObservationLog.namespace_id)
        .where(text(f"observation_logs.{work} = 'wanted'"), ObservationLog.id > after)
        .order_by(ObservationLog.id)
        .limit(limit)
    )
    return [(log_id, name, key) for log_id, name, key in tx.execute(query)]


# --- status -----------------------------------------------------------------------------------------------------------
def stats(tx: Transaction, namespace_id: int, session_id: int | None = None) -> list[ObservationStats]:
    """The figures of at most 50 observed sessions. The session with the most recently changed log comes first.

    Args:
        session_id: only this session. ``None`` means all observed sessions of the namespace.
    """
    tail = (
        select(func.count().label("messages"), func.coalesce(func.sum(Memory.tokens), 0).label("tokens"))
        .where(
            Memory.namespace_id == ObservationLog.namespace_id,
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
        select(ObservationLog, SessionRow.session_key, tail, ready, condensed.exists())
        .join(SessionRow, SessionRow.id == ObservationLog.session_id)
        .join(tail, SessionRow.id.is_not(None))
        .join(ready, SessionRow.id.is_not(None))
        .where(ObservationLog.namespace_id == namespace_id)
        .order_by(ObservationLog.updated_at.desc(), ObservationLog.id.desc())
        .limit(MOST_LISTED)
    )
    if session_id is not None:
        query = query.where(ObservationLog.session_id == session_id)
    return [
        ObservationStats(
            session_key=key,
            generation=found.generation,
            observed_through=found.observed_through_seq,
            tail_messages=int(messages),
            tail_tokens=int(tokens),
            chunks=int(count),
            buffered_through=max(found.observed_through_seq, through or 0),
            log_tokens=-(-len(found.observations) // 4),
            reflection_ready=bool(has_reflection),
            observing=found.observing,
            reflecting=found.reflecting,
        )
        for found, key, messages, tokens, count, through, has_reflection in tx.execute(query)
    ]
