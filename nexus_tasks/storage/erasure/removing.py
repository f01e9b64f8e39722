"""Taking what falls out of every table. A test names each table that may hold words, and fails for a new one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    delete,
    exists,
    func,
    insert,
    not_,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import aliased

from nexus_tasks.storage import batches, observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import topics
from nexus_tasks.storage.erasure.cascade import Falling
from nexus_tasks.storage.models import (
    Base,
    DeadLetter,
    Derivation,
    DigestRequest,
    Embedding,
    Evidence,
    JobRun,
    Memory,
    OpenQuestion,
    PerspectiveRow,
    ReflectionChange,
    SavedAnswer,
    Session,
    SessionDigest,
)

Counts = Counter[str]


def remove(tx: Transaction, namespace_id: int, falling: Falling) -> Counts:
    """Delete what falls, revive what it had superseded, and put in the outbox what is to be made anew.

    Returns how many rows of which table went.
    """
    ids = list(falling.memories)
    gone = Counts()
    gone += _traces(tx, namespace_id, falling)
    _weaken(tx, falling)
    _revive(tx, ids)
    gone += +Counts(topics=topics.remove(tx, namespace_id, falling.memories.values(), falling.again))
    for model, column in ((Evidence, Evidence.memory_id), (Evidence, Evidence.source_id)):
        gone += _delete(tx, model, column.in_(ids))
    gone += _delete(tx, Embedding, Embedding.memory_id.in_(ids))
    gone += _delete(tx, SessionDigest, SessionDigest.memory_id.in_(ids))
    gone += _delete(tx, Derivation, Derivation.memory_id.in_(ids))
    gone += _delete(tx, ReflectionChange, ReflectionChange.memory_id.in_(ids))
    gone += _delete(tx, Memory, Memory.id.in_(ids))
    gone += _observations(tx, falling)
    _ask_again(tx, namespace_id, falling)
    return gone


def remove_session(tx: Transaction, session: Session) -> Counts:
    """Delete a session whose memories have gone."""
    gone = Counts()
    for model in (DigestRequest, SessionDigest, Derivation):
        gone += _delete(tx, model, model.session_id == session.id)
    named = DeadLetter.args["session_key"].as_string() == session.session_key
    gone += _delete(tx, DeadLetter, and_(DeadLetter.namespace_id == session.namespace_id, named))
    ours = and_(
        JobRun.namespace_id == session.namespace_id,
        JobRun.scope.contains(json.dumps(session.session_key, ensure_ascii=False), autoescape=True),
    )
    gone += _delete(tx, JobRun, ours)
    gone += _delete(tx, Session, Session.id == session.id)
    return gone


def remove_namespace(tx: Transaction, namespace_id: int, spared: Collection[str]) -> Counts:
    """Delete every row of a namespace but those of the tables in ``spared``."""
    gone = Counts()
    for table in reversed(Base.metadata.sorted_tables):
        if table.name not in spared and "namespace_id" in table.c:
            result: Any = tx.execute(delete(table).where(table.c.namespace_id == namespace_id))
            gone[table.name] += result.rowcount
    return +gone


def _delete(tx: Transaction, model: type[Base], which: ColumnElement[bool]) -> Counts:
    result: Any = tx.execute(delete(model).where(which).execution_options(synchronize_session=False))
    return Counts({model.__tablename__: result.rowcount} if result.rowcount else {})


def _traces(tx: Transaction, namespace_id: int, falling: Falling) -> Counts:
    """What may quote the memories: answers, error messages, plans, and what runs said of them."""
    gone = _delete(tx, SavedAnswer, SavedAnswer.namespace_id == namespace_id)  # their cost stays in the ledger
    gone += _delete(tx, OpenQuestion, OpenQuestion.namespace_id == namespace_id)
    gone += Counts({"batch_requests": batches.erase(tx, namespace_id, list(falling.memories))})
    keys = list(tx.scalars(select(Session.session_key).where(Session.id.in_(falling.sessions()))))
    pairs = tx.execute(
        select(PerspectiveRow.observer, PerspectiveRow.subject).where(PerspectiveRow.id.in_(falling.perspectives()))
    ).all()
    named = DeadLetter.args["memory_id"].as_string().in_([str(i) for i in falling.memories])
    told = DeadLetter.args["session_key"].as_string().in_(keys)
    judged = tuple_(DeadLetter.args["observer"].as_string(), DeadLetter.args["subject"].as_string())
    which = or_(named, told, *([judged.in_([tuple(pair) for pair in pairs])] if pairs else []))
    gone += _delete(tx, DeadLetter, and_(DeadLetter.namespace_id == namespace_id, which))
    # A plan that is held, and the mark of a dead letter that has just gone: these facts are reflected on anew.
    tx.execute(
        update(PerspectiveRow)
        .where(PerspectiveRow.id.in_(falling.perspectives()))
        .values(held=null(), dead=False)  # a plain None would become JSON's null, which is a plan
        .execution_options(synchronize_session=False)
    )
    return gone


def _observations(tx: Transaction, falling: Falling) -> Counts:
    """Logs and chunks that cover an erased message; their other messages are observed anew."""
    gone = Counts()
    for memory in falling.memories.values():
        if memory.level == "raw" and memory.seq is not None:
            session = tx.get_one(Session, memory.session_id)
            gone += Counter(observations.forget_covering(tx, session, memory.seq))
    return gone


def _weaken(tx: Transaction, falling: Falling) -> None:
    """A fact that stays is dated, and placed, by the earliest source that it has left."""
    for memory_id, (lost, left) in sorted(falling.weakened.items()):
        first = min(left, key=lambda source: (source.occurred_at, source.id))
        tx.execute(
            update(Memory)
            .where(Memory.id == memory_id)
            .values(
                times_reinforced=func.greatest(Memory.times_reinforced - lost, 0),
                session_id=first.session_id,
                occurred_at=first.occurred_at,
                valid_from=first.occurred_at,
            )
            .execution_options(synchronize_session=False)
        )


def _revive(tx: Transaction, ids: Collection[int]) -> None:
    """What was superseded by a memory that goes holds again, unless the same has been said since."""
    same = aliased(Memory)
    again = exists().where(
        same.namespace_id == Memory.namespace_id,
        same.perspective_id == Memory.perspective_id,
        same.content_key == Memory.content_key,
        same.level == "explicit",
        same.valid_to.is_(None),
        same.id.not_in(ids),
    )
    weaker = ReflectionChange.memory_id == Memory.id, ReflectionChange.superseded
    before = (
        select(ReflectionChange.confidence_before)
        .where(*weaker, ReflectionChange.confidence_after == Memory.confidence)
        .order_by(ReflectionChange.reflection_id.desc())
        .limit(1)
        .scalar_subquery()
    )
    tx.execute(
        update(Memory)
        .where(Memory.superseded_by.in_(ids), Memory.id.not_in(ids), not_(again))
        .values(valid_to=None, superseded_by=None, confidence=func.coalesce(before, Memory.confidence))
        .execution_options(synchronize_session=False)
    )


def _ask_again(tx: Transaction, namespace_id: int, falling: Falling) -> None:
    """Facts of the messages that stay, and digests of the sessions that lost theirs."""
    again = falling.again - falling.memories.keys()
    tx.execute(
        update(Derivation)
        .where(Derivation.memory_id.in_(again), Derivation.state == "done")
        .values(state="wanted", batch=None)
        .execution_options(synchronize_session=False)
    )
    for session_id in sorted(falling.sessions()):
        left = tx.scalar(select(func.count()).where(Memory.session_id == session_id, Memory.level == "raw"))
        if left:
            values = {"namespace_id": namespace_id, "session_id": session_id, "reason": "manual_rebuild"}
            tx.execute(insert(DigestRequest).values(**values))
