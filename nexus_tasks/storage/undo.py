"""Undoing one reflection. After the undo the facts are as if this reflection had not been made.

A reflection relates the new facts of a perspective (an observer's memories about one subject) to the perspective's old
facts. ``conclusions.py`` stores a reflection and its changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.orm import aliased

from nexus_tasks.storage import expiry, validity
from nexus_tasks.storage.conclusions import CONTRADICTION_PENALTY
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, ReflectionChange, ReflectionRow


@dataclass(frozen=True, kw_only=True)
class UndoResult:
    """The memory ids that an undo changed."""

    removed: tuple[int, ...]  # memories that the reflection made; the undo deleted them
    revived: tuple[int, ...]  # memories that the reflection had superseded; they are valid again
    restored: tuple[int, ...]  # memories whose counters, confidence or validity the undo changed back


def find_reflection(tx: Transaction, namespace_id: int, reflection: int | str) -> ReflectionRow | None:
    """Find a reflection by its id or by the id of its job. Returns ``None`` when there is no such reflection."""
    which = ReflectionRow.id == reflection if isinstance(reflection, int) else ReflectionRow.job_id == reflection
    query = select(ReflectionRow).where(ReflectionRow.namespace_id == namespace_id, which)
    return tx.scalar(query, execution_options={"populate_existing": True})


def judged_by_undone(tx: Transaction, perspective_id: int) -> tuple[set[frozenset[int]], set[frozenset[int]]]:
    """The fact ids in the answers of undone reflections, so that later reflections do not make the same changes again.

    Returns:
        The pairs of facts that were related, and the supports of insights. The support of an insight is the set of
        facts that the insight rests on.
    """
    rows = tx.scalars(
        select(ReflectionRow.judged).where(
            ReflectionRow.perspective_id == perspective_id, ReflectionRow.undone_at.is_not(None)
        )
    ).all()
    pairs = {frozenset(pair) for judged in rows for pair in judged["pairs"]}
    return pairs, {frozenset(support) for judged in rows for support in judged["insights"]}


def facts_said_again(tx: Transaction, reflection_id: int) -> list[tuple[int, int]]:
    """Facts that the reflection superseded and that a later message repeated.

    Each is (id of the superseded fact, id of the newer fact with the same content). The fact that a correction made is
    left out, because the undo deletes it.
    """
    old, since = aliased(Memory), aliased(Memory)
    query = (
        select(old.id, since.id)
        .join(ReflectionChange, ReflectionChange.memory_id == old.id)
        .join(
            since,
            (since.namespace_id == old.namespace_id)
            & (since.perspective_id == old.perspective_id)
            & (since.content_key == old.content_key)
            & (since.level == "explicit")
            & since.valid_to.is_(None),
        )
        .where(
            ReflectionChange.reflection_id == reflection_id,
            ReflectionChange.superseded,
            old.id != since.id,
            since.reflection_id.is_distinct_from(reflection_id),
        )
        .order_by(old.id)
    )
    return [(one, other) for one, other in tx.execute(query)]


def resting_on(tx: Transaction, reflection_id: int) -> list[tuple[int, int | None]]:
    """The memories that rest on the reflection's memories, but were not made by the reflection.

    Each is (id, number of the last reflection that made the memory or let it rest on them). Digests are left out,
    because an undo deletes them (see ``undo_correction.py``).
    """
    conclusions = select(Memory.id).where(Memory.reflection_id == reflection_id)
    query = (
        select(Evidence.memory_id, func.max(func.coalesce(Evidence.reflection_id, Memory.reflection_id)))
        .join(Memory, Memory.id == Evidence.memory_id)
        .where(
            Evidence.source_id.in_(conclusions),
            Evidence.memory_id.not_in(conclusions),
            Evidence.role != "digested_from",
        )
        .group_by(Evidence.memory_id)
        .order_by(Evidence.memory_id)
    )
    return [(memory_id, number) for memory_id, number in tx.execute(query)]


def reverse(tx: Transaction, reflection: ReflectionRow) -> UndoResult:
    """Undo a reflection. The caller has locked the reflection's perspective.

    The perspective's watermark (the id of the last fact that a reflection has read) stays, so no later reflection reads
    the facts again as new facts. Later reflections have recorded the values of the facts before and after their own
    changes. The undo corrects these records and the facts. Therefore reflections can be undone in any order. After an
    undo of all reflections, the facts are as they were before the first reflection.
    """
    mine = tx.scalars(
        select(ReflectionChange)
        .where(ReflectionChange.reflection_id == reflection.id)
        .order_by(ReflectionChange.memory_id)
    ).all()
    touched = [change.memory_id for change in mine]
    facts = {
        memory.id: memory
        for memory in tx.scalars(select(Memory).where(Memory.id.in_(touched)).execution_options(populate_existing=True))
    }
    later = _later(tx, reflection.id, touched)
    for change in mine:
        _restore(facts[change.memory_id], change, later.get(change.memory_id, []))
    tx.flush()
    made = select(Memory.id).where(Memory.reflection_id == reflection.id)
    held = tx.scalars(select(Memory.id).where(Memory.superseded_by.in_(made), Memory.id.not_in(made))).all()
    ended = {*held, *(change.memory_id for change in mine if change.superseded)}
    edges = tx.execute(
        delete(Evidence)
        .where(Evidence.reflection_id == reflection.id)
        .returning(Evidence.memory_id, Evidence.source_id, Evidence.role),
        execution_options={"synchronize_session": False},
    ).all()
    heirs = _take_from_heirs(tx, [(fact, source) for fact, source, role in edges if role == "derived_from"])
    removed = tx.scalars(
        delete(Memory).where(Memory.reflection_id == reflection.id).returning(Memory.id),
        execution_options={"synchronize_session": False},
    ).all()
    touched = sorted({*touched, *heirs})
    expiry.settle(tx, touched)  # a merged fact has lost the other fact's messages
    tx.execute(
        update(ReflectionRow)
        .where(ReflectionRow.id == reflection.id)
        .values(undone_at=datetime.now(UTC))
        .execution_options(synchronize_session=False)
    )
    # The facts that the reflection ended may have ended for another reason since, after an erasure had revived them.
    # What a deleted fact stood for may hold again: an earlier fact of the same words, whose own correction was undone.
    revived = validity.settle_facts(tx, ended)
    return UndoResult(removed=tuple(sorted(removed)), revived=tuple(sorted(revived)), restored=tuple(touched))


_TAKE_FROM_HEIRS = text(
    """
    WITH gone AS (
        DELETE FROM evidence AS e
        USING unnest(CAST(:facts AS bigint[]), CAST(:sources AS bigint[])) AS lost (fact, source)
        JOIN evidence AS merged ON merged.memory_id = lost.fact AND merged.role = 'duplicate_of'
        WHERE e.memory_id = merged.source_id AND e.source_id = lost.source AND e.role = 'derived_from'
          AND e.reflection_id = merged.reflection_id
          AND NOT EXISTS (
              SELECT FROM evidence AS other
              JOIN evidence AS said ON said.memory_id = other.memory_id AND said.role = 'derived_from'
              WHERE other.source_id = e.memory_id AND other.role = 'duplicate_of' AND said.source_id = e.source_id
          )
        RETURNING e.memory_id, e.source_id, e.reflection_id
    ), counted AS (
        UPDATE reflection_changes AS c SET reinforced = greatest(c.reinforced - lost.sources, 0)
        FROM (SELECT memory_id, reflection_id, count(*) AS sources FROM gone GROUP BY 1, 2) AS lost
        WHERE c.memory_id = lost.memory_id AND c.reflection_id = lost.reflection_id
    ), weakened AS (
        UPDATE memories AS m SET times_reinforced = greatest(m.times_reinforced - lost.sources, 0)
        FROM (SELECT memory_id, count(*) AS sources FROM gone GROUP BY 1) AS lost WHERE m.id = lost.memory_id
    )
    SELECT memory_id, source_id FROM gone
    """
)


def _take_from_heirs(tx: Transaction, lost: Sequence[tuple[int, int]]) -> set[int]:
    """Take messages from the facts into which later reflections have merged the facts that lost the messages.

    Args:
        lost: pairs of a fact and a message that an undone merge had given to the fact.

    Returns:
        The ids of the facts that lost a message here.
    """
    heirs = set[int]()
    while lost:
        values = {"facts": [fact for fact, _ in lost], "sources": [source for _, source in lost]}
        lost = [(fact, source) for fact, source in tx.execute(_TAKE_FROM_HEIRS, values)]
        heirs |= {fact for fact, _ in lost}
    return heirs


def _later(tx: Transaction, reflection_id: int, memory_ids: Sequence[int]) -> dict[int, list[ReflectionChange]]:
    """The changes of these memories by later reflections: memory id → changes, oldest first.

    Undone reflections are left out.
    """
    rows = tx.scalars(
        select(ReflectionChange)
        .join(ReflectionRow, ReflectionRow.id == ReflectionChange.reflection_id)
        .where(
            ReflectionChange.memory_id.in_(memory_ids),
            ReflectionChange.reflection_id > reflection_id,
            ReflectionRow.undone_at.is_(None),
        )
        .order_by(ReflectionChange.reflection_id)
    )
    found: dict[int, list[ReflectionChange]] = {}
    for change in rows:
        found.setdefault(change.memory_id, []).append(change)
    return found


def _restore(fact: Memory, mine: ReflectionChange, later: Sequence[ReflectionChange]) -> None:
    if mine.validated_after is not None:  # also when the messages that it counted have been erased since
        fact.times_reinforced -= mine.reinforced
        _restore_validation(fact, mine, [change for change in later if change.validated_after is not None])
    if mine.weakened:
        _restore_confidence(fact, mine, [change for change in later if change.weakened])


def _restore_validation(fact: Memory, mine: ReflectionChange, later: Sequence[ReflectionChange]) -> None:
    """Restore the validation time that the fact had before the undone reflection.

    The fact contains the time that the undone reflection set. But if a later reflection has validated the fact again,
    only ``validated_before`` in the record of that reflection contains this time.
    """
    if not later:
        if fact.last_validated_at == mine.validated_after:
            fact.last_validated_at = mine.validated_before
    elif later[0].validated_before == mine.validated_after:
        later[0].validated_before = mine.validated_before


def lower_less(tx: Transaction, reflection_id: int, memory_id: int, times: int) -> None:
    """Take back ``times`` of the times that a reflection has lowered a fact's confidence. An undo takes back all."""
    mine = tx.get_one(ReflectionChange, (reflection_id, memory_id), populate_existing=True)
    fact = tx.get_one(Memory, memory_id, populate_existing=True)
    mine.weakened = max(mine.weakened - times, 0)
    later = _later(tx, reflection_id, [memory_id]).get(memory_id, [])
    value = _restore_confidence(fact, mine, [change for change in later if change.weakened], lowered=mine.weakened)
    mine.confidence_after = value
    tx.flush()


def _restore_confidence(
    fact: Memory, mine: ReflectionChange, later: Sequence[ReflectionChange], *, lowered: int = 0
) -> float:
    """Recompute a fact's confidence as if the reflection of ``mine`` had lowered it only ``lowered`` times.

    Returns the confidence that the fact then has after this reflection.

    The function starts from the confidence before the undone reflection and applies the later reflections' changes.
    Between two reflections, the confidence changes only when the fact gets a new source with a higher confidence. The
    fact then takes this higher confidence. Therefore, when a change's ``confidence_before`` differs from the
    ``confidence_after`` of the change before it, ``confidence_before`` is the confidence of a new source.
    """
    assert mine.confidence_before is not None
    value = after = _lowered(mine.confidence_before, lowered)
    left = mine.confidence_after
    for change in later:
        if change.confidence_before != left:
            value = max(value, change.confidence_before or 0.0)
        left = change.confidence_after
        change.confidence_before = value
        value = _lowered(value, change.weakened)
        change.confidence_after = value
    fact.confidence = value if fact.confidence == left else max(value, fact.confidence)
    return after


def _lowered(confidence: float, times: int) -> float:
    for _ in range(times):
        confidence = max(confidence - CONTRADICTION_PENALTY, 0.0)
    return confidence
