"""Deleting a cascade (all memories that an erasure removes) from every table.

``tests/integration/test_forget.py`` checks that no table keeps erased text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    null,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import array

from nexus_tasks.event_time import event_time, zone
from nexus_tasks.storage import batches, expiry, observations, perspectives, undo, validity
from nexus_tasks.storage.dead_letters import ERASED_ERROR
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.erasure import topics
from nexus_tasks.storage.erasure.cascade import Cascade
from nexus_tasks.storage.many import among, among_texts, not_among
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
    Posting,
    ReflectionChange,
    SavedAnswer,
    SessionDigest,
    SessionRow,
    WantedJob,
    WebhookDelivery,
)

Counts = Counter[str]


def remove(tx: Transaction, namespace_id: int, cascade: Cascade) -> Counts:
    """Delete the memories of a cascade, and request new derivations and digests.

    A memory that a deleted memory had superseded becomes valid again. Returns the number of deleted rows of each table.
    """
    ids = list(cascade.memories)
    gone = Counts()
    gone += _delete_traces(tx, namespace_id, cascade)
    for reflection_id, memory_id, times in tx.execute(_CONTRADICTED, {"ids": ids}).all():
        undo.lower_less(tx, reflection_id, memory_id, times)
    for memory_id, values in sorted(cascade.cleared.items()):
        if values:
            changed = update(Memory).where(Memory.id == memory_id).values(**values)
            tx.execute(changed.execution_options(synchronize_session=False))
    _weaken(tx, cascade)
    _forget_merged_sources(tx, ids)
    superseded = _superseded_by(tx, ids)
    gone += +Counts(topics=topics.remove(tx, namespace_id, cascade.memories.values(), cascade.rederive))
    for model, column in ((Evidence, Evidence.memory_id), (Evidence, Evidence.source_id)):
        gone += _delete(tx, model, among(column, ids))
    gone += _delete(tx, Embedding, among(Embedding.memory_id, ids))
    gone += _delete(tx, SessionDigest, among(SessionDigest.memory_id, ids))
    gone += _delete(tx, Derivation, among(Derivation.memory_id, ids))
    gone += _delete(tx, ReflectionChange, among(ReflectionChange.memory_id, ids))
    gone += _delete(tx, Memory, among(Memory.id, ids))
    expiry.settle(tx, cascade.weakened)
    _revive(tx, superseded)
    gone += _delete_observations(tx, cascade)
    _request_again(tx, namespace_id, cascade)
    return gone


def remove_session(tx: Transaction, session: SessionRow) -> Counts:
    """Delete a session with its requests, job runs and dead letters. Returns the number of deleted rows of each table.

    Call this function after the session's memories are deleted.
    """
    gone = Counts()
    for model in (DigestRequest, SessionDigest, Derivation):
        gone += _delete(tx, model, model.session_id == session.id)
    named = DeadLetter.args["session_key"].as_string() == session.session_key
    gone += _delete(tx, DeadLetter, and_(DeadLetter.namespace_id == session.namespace_id, named))
    ours = and_(
        JobRun.namespace_id == session.namespace_id,
        # With the name of the field, because a namespace or an observer may be called like the session.
        JobRun.scope.contains(f'"session_key":{json.dumps(session.session_key, ensure_ascii=False)}', autoescape=True),
    )
    gone += _delete(tx, JobRun, ours)
    wanted = WantedJob.args["session_key"].as_string() == session.session_key
    gone += _delete(tx, WantedJob, and_(WantedJob.namespace_id == session.namespace_id, wanted))
    told = WebhookDelivery.about["session_key"].as_string() == session.session_key
    gone += _delete(tx, WebhookDelivery, and_(WebhookDelivery.namespace_id == session.namespace_id, told))
    gone += _delete(tx, SessionRow, SessionRow.id == session.id)
    return gone


def remove_namespace(tx: Transaction, namespace_id: int, spared: Collection[str]) -> Counts:
    """Delete every row of a namespace, except the rows in the tables ``spared``.

    Returns the number of deleted rows of each table.
    """
    gone = Counts()
    for table in reversed(Base.metadata.sorted_tables):
        # A trigger deletes the postings with their memories, and no index finds the postings of a namespace.
        if table.name not in (*spared, Posting.__tablename__) and "namespace_id" in table.c:
            result: Any = tx.execute(delete(table).where(table.c.namespace_id == namespace_id))
            gone[table.name] += result.rowcount
    return +gone


def _delete(tx: Transaction, model: type[Base], which: ColumnElement[bool]) -> Counts:
    result: Any = tx.execute(delete(model).where(which).execution_options(synchronize_session=False))
    return Counts({model.__tablename__: result.rowcount} if result.rowcount else {})


def _delete_traces(tx: Transaction, namespace_id: int, cascade: Cascade) -> Counts:
    """Delete the rows of other tables that may quote the memories of the cascade.

    These rows are saved answers, open questions, batch requests, dead letters, and plans of reflections that wait for
    review. Dead letters of jobs that are still to be done stay, and lose the text of their error.
    """
    gone = _delete(tx, SavedAnswer, SavedAnswer.namespace_id == namespace_id)  # the ledger keeps the answers' cost
    gone += _delete(tx, OpenQuestion, OpenQuestion.namespace_id == namespace_id)
    gone += Counts({"batch_requests": batches.erase_texts(tx, namespace_id, list(cascade.memories))})
    pairs = tx.execute(
        select(PerspectiveRow.observer, PerspectiveRow.subject).where(
            among(PerspectiveRow.id, cascade.perspectives_losing_memories())
        )
    ).all()
    named = among_texts(DeadLetter.args["memory_id"].as_string(), [str(i) for i in cascade.memories])
    perspective = tuple_(DeadLetter.args["observer"].as_string(), DeadLetter.args["subject"].as_string())
    which = or_(named, *([perspective.in_([tuple(pair) for pair in pairs])] if pairs else []))
    gone += _delete(tx, DeadLetter, and_(DeadLetter.namespace_id == namespace_id, which))
    _forget_errors(tx, namespace_id, {m.session_id for m in cascade.memories.values() if m.session_id})
    # Delete the stored plans of reflections, and unset `dead`, which the deleted dead letters had set. The perspectives
    # can then be reflected on again.
    tx.execute(
        update(PerspectiveRow)
        .where(among(PerspectiveRow.id, cascade.perspectives_losing_memories()))
        .values(held=null(), dead=False)  # None would be stored as the JSON value null, which counts as a plan
        .execution_options(synchronize_session=False)
    )
    return gone


def _forget_errors(tx: Transaction, namespace_id: int, session_ids: Collection[int]) -> None:
    """Delete the texts of the errors in dead letters, of jobs that have read these sessions or that name no session.

    Such an error may quote an erased message. The letter stays, because its job can still be retried.
    """
    keys = select(SessionRow.session_key).where(among(SessionRow.id, session_ids))
    said = select(cast(Memory.id, Text)).where(among(Memory.session_id, session_ids), Memory.level == "raw")
    read = or_(
        DeadLetter.args["session_key"].as_string().in_(keys),
        DeadLetter.args["memory_id"].as_string().in_(said),
        ~DeadLetter.args.bool_op("?|")(array(["session_key", "memory_id", "observer"])),
    )
    tx.execute(
        update(DeadLetter)
        .where(DeadLetter.namespace_id == namespace_id, DeadLetter.message != ERASED_ERROR, read)
        .values(message=ERASED_ERROR, traceback="")
        .execution_options(synchronize_session=False)
    )


def _delete_observations(tx: Transaction, cascade: Cascade) -> Counts:
    """Delete the notes that cover an erased message from observation logs and chunks.

    The remaining messages are observed again.
    """
    gone = Counts()
    first = dict[int, int]()  # the notes on the messages behind an erased one are deleted too
    for memory in cascade.memories.values():
        if memory.level == "raw" and memory.seq is not None and memory.session_id is not None:
            first[memory.session_id] = min(memory.seq, first.get(memory.session_id, memory.seq))
    for session_id, seq in sorted(first.items()):
        gone += Counter(observations.erase_covering(tx, tx.get_one(SessionRow, session_id), seq))
    return gone


def _weaken(tx: Transaction, cascade: Cascade) -> None:
    """Lower ``times_reinforced`` of each fact that loses sources and stays, by the number of the lost sources.

    The fact also gets the session and the time of its earliest remaining source. If it loses its earliest
    source, its event time is read again: "last Friday" was another day when the erased message said it.
    """
    for memory_id, (lost, left) in sorted(cascade.weakened.items()):
        first = min(left, key=lambda source: (source.occurred_at, source.id))
        event = dict[str, Any]()
        if said := cascade.redated.get(memory_id):
            span = event_time(said, first.occurred_at, zone(first.time_zone))
            event = {"event_from": span and span.begin, "event_to": span and span.end, "time_zone": first.time_zone}
        tx.execute(
            update(Memory)
            .where(Memory.id == memory_id)
            .values(
                times_reinforced=func.greatest(Memory.times_reinforced - lost, 0),
                session_id=first.session_id,
                occurred_at=first.occurred_at,
                valid_from=first.occurred_at,
                standing=cascade.standings.get(memory_id, Memory.standing),
                **event,
            )
            .execution_options(synchronize_session=False)
        )


# Facts that hold, and whose confidence was lowered because an erased fact, which was said later, contradicts them. What
# was superseded is not among them: `_revive` gives it its confidence back.
_CONTRADICTED = text(
    """
    SELECT c.reflection_id, fact.id, count(*)
    FROM memories AS told
    JOIN evidence AS e ON e.memory_id = told.id AND e.role = 'contradicts'
    JOIN evidence AS o ON o.memory_id = told.id AND o.role = 'contradicts' AND o.source_id <> e.source_id
    JOIN memories AS fact ON fact.id = e.source_id
    JOIN memories AS other ON other.id = o.source_id
    JOIN reflections AS r ON r.id = told.reflection_id AND r.undone_at IS NULL
    JOIN reflection_changes AS c ON c.reflection_id = r.id AND c.memory_id = fact.id
        AND c.weakened > 0 AND NOT c.superseded
    WHERE told.id = ANY(CAST(:ids AS bigint[])) AND told.level = 'contradiction'
      AND fact.id <> ALL(CAST(:ids AS bigint[]))
      AND (coalesce(fact.valid_from, fact.occurred_at), fact.id)
          < (coalesce(other.valid_from, other.occurred_at), other.id)
    GROUP BY c.reflection_id, fact.id ORDER BY 1, 2
    """
)
_FORGET_MERGED_SOURCES = text(
    """
    UPDATE reflection_changes AS c SET reinforced = greatest(c.reinforced - lost.sources, 0)
    FROM (
        SELECT memory_id, reflection_id, count(*) AS sources FROM evidence
        WHERE source_id = ANY(CAST(:ids AS bigint[])) AND role = 'derived_from' AND reflection_id IS NOT NULL
        GROUP BY memory_id, reflection_id
    ) AS lost
    WHERE c.memory_id = lost.memory_id AND c.reflection_id = lost.reflection_id
    """
)


def _forget_merged_sources(tx: Transaction, ids: Collection[int]) -> None:
    """Lower the reinforcements that a reflection counted when it merged two facts, by the number of erased sources.

    ``_weaken`` has lowered them on the fact already. An undo would otherwise take them away a second time.
    """
    tx.execute(_FORGET_MERGED_SOURCES, {"ids": list(ids)})


def _superseded_by(tx: Transaction, ids: Collection[int]) -> list[int]:
    """Ids of the memories that one of the memories ``ids`` has superseded, and that are not among them."""
    return list(tx.scalars(select(Memory.id).where(among(Memory.superseded_by, ids), not_among(Memory.id, ids))))


def _revive(tx: Transaction, ids: Collection[int]) -> None:
    """Make memories valid again whose successor was erased, if nothing else has ended them.

    A fact whose confidence a reflection had lowered gets back its earlier confidence. The next reflection judges the
    fact again: while it had ended, no reflection compared later facts with it.
    """
    if not ids:
        return
    tx.execute(
        update(Memory)
        .where(among(Memory.id, ids), Memory.level.startswith("summary"))
        .values(valid_to=None, superseded_by=None)
        .execution_options(synchronize_session=False)
    )
    revived = validity.settle_facts(tx, ids)
    before = (
        select(ReflectionChange.confidence_before)
        .where(
            ReflectionChange.memory_id == Memory.id,
            ReflectionChange.superseded,
            ReflectionChange.confidence_after == Memory.confidence,
        )
        .order_by(ReflectionChange.reflection_id.desc())
        .limit(1)
        .scalar_subquery()
    )
    tx.execute(
        update(Memory)
        .where(among(Memory.id, revived), Memory.level == "explicit")
        .values(confidence=func.coalesce(before, Memory.confidence))
        .execution_options(synchronize_session=False)
    )
    perspectives.judge_also(tx, revived)


def _request_again(tx: Transaction, namespace_id: int, cascade: Cascade) -> None:
    """Make the derivations of the messages ``rederive`` wanted, and request a digest for each session that lost one.

    No digest is requested for a session that has no messages left.
    """
    rederive = cascade.rederive - cascade.memories.keys()
    tx.execute(
        update(Derivation)
        .where(among(Derivation.memory_id, rederive), Derivation.state == "done")
        .values(state="wanted", batch=None)
        .execution_options(synchronize_session=False)
    )
    for session_id in sorted(cascade.sessions_losing_digests()):
        left = tx.scalar(select(func.count()).where(Memory.session_id == session_id, Memory.level == "raw"))
        if left:
            values = {"namespace_id": namespace_id, "session_id": session_id, "reason": "manual_rebuild"}
            tx.execute(insert(DigestRequest).values(**values))
