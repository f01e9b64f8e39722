"""Storing the results of a reflection: the memories and evidence edges that it makes, and the facts that it changes.

A reflection relates the new facts of a perspective (an observer's memories about one subject) to the perspective's old
facts. Each change of a fact is recorded with the old and the new values, so that ``undo.py`` can undo the reflection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select, text, update

from nexus_tasks.storage import evidence, expiry, validity
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow, ReflectionRow
from nexus_tasks.text import estimate_tokens

# The confidence (0 to 1) of a fact falls by this number when the fact loses a contradiction with another fact. The
# number is chosen by hand, not measured.
CONTRADICTION_PENALTY = 0.15


def begin(tx: Transaction, perspective: PerspectiveRow, job_id: str, judged: dict[str, Any]) -> int:
    """Insert a row for a reflection, and return the row's id.

    The rows of all memories, evidence edges and changes that the reflection makes contain this id.

    Args:
        judged: the result of :func:`judged_ids`.
    """
    return tx.execute(
        insert(ReflectionRow)
        .values(namespace_id=perspective.namespace_id, perspective_id=perspective.id, job_id=job_id, judged=judged)
        .returning(ReflectionRow.id)
    ).scalar_one()


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """A memory that a reflection makes.

    A conclusion is a contradiction of two facts, or an insight from three or more facts. Earlier releases also made
    reworded reinforcements (an old fact in the words of a new fact).

    A conclusion has the lowest standing of its sources. ``valid_from`` is the time of the newest fact that the
    conclusion rests on. For a contradiction that ends a fact,
    ``valid_from`` is the time at which the fact ends. ``valid_from`` is never the time of the reflection.
    """

    level: str
    content: str
    confidence: float
    sources: tuple[int, ...]
    role: str
    made_by: str
    valid_from: datetime


def conclude(tx: Transaction, perspective: PerspectiveRow, reflection_id: int, conclusion: Conclusion) -> int:
    """Store a conclusion with its evidence. Returns the memory id."""
    memory_id = tx.execute(
        insert(Memory)
        .values(
            namespace_id=perspective.namespace_id,
            perspective_id=perspective.id,
            level=conclusion.level,
            author=perspective.subject,
            content=conclusion.content,
            tokens=estimate_tokens(conclusion.content),
            confidence=conclusion.confidence,
            occurred_at=conclusion.valid_from,
            valid_from=conclusion.valid_from,
            made_by=conclusion.made_by,
            reflection_id=reflection_id,
            standing=select(func.min(Memory.standing)).where(Memory.id.in_(conclusion.sources)).scalar_subquery(),
            # A conclusion from a fact that has expired is as uncertain as the fact.
            expires_at=select(func.min(Memory.expires_at)).where(Memory.id.in_(conclusion.sources)).scalar_subquery(),
        )
        .returning(Memory.id)
    ).scalar_one()
    evidence.link(tx, perspective.namespace_id, memory_id, conclusion.sources, conclusion.role)
    return memory_id


# _REINFORCE and _WEAKEN change facts, and record the facts' values before the reflection's first change and after its
# last change.
_REINFORCE = text(
    """
    WITH before AS (SELECT id, namespace_id, last_validated_at FROM memories WHERE id = ANY(:ids)),
    changed AS (
        UPDATE memories SET times_reinforced = times_reinforced + :times, last_validated_at = now() WHERE id = ANY(:ids)
    )
    INSERT INTO reflection_changes AS c
        (reflection_id, memory_id, namespace_id, reinforced, validated_before, validated_after)
    SELECT :reflection, id, namespace_id, :times, last_validated_at, now() FROM before
    ON CONFLICT (reflection_id, memory_id) DO UPDATE SET
        validated_before = CASE WHEN c.reinforced = 0 THEN excluded.validated_before ELSE c.validated_before END,
        validated_after = excluded.validated_after,
        reinforced = c.reinforced + :times
    """
)
_WEAKEN = text(
    """
    WITH before AS (SELECT id, namespace_id, confidence FROM memories WHERE id = :id),
    changed AS (
        UPDATE memories SET confidence = greatest(confidence - :by, 0) WHERE id = :id RETURNING id, confidence
    )
    INSERT INTO reflection_changes AS c
        (reflection_id, memory_id, namespace_id, weakened, confidence_before, confidence_after)
    SELECT :reflection, before.id, before.namespace_id, 1, before.confidence, changed.confidence
    FROM before JOIN changed USING (id)
    ON CONFLICT (reflection_id, memory_id) DO UPDATE SET
        confidence_before = CASE WHEN c.weakened = 0 THEN excluded.confidence_before ELSE c.confidence_before END,
        confidence_after = excluded.confidence_after,
        weakened = c.weakened + 1
    """
)
_SUPERSEDED = text(
    """
    INSERT INTO reflection_changes (reflection_id, memory_id, namespace_id, superseded, superseded_by, ended_at)
    VALUES (:reflection, :id, :namespace, true, :by, :at)
    ON CONFLICT (reflection_id, memory_id) DO UPDATE SET
        superseded = true, superseded_by = excluded.superseded_by, ended_at = excluded.ended_at
    """
)
_SAID_AFTER = text(
    """
    SELECT min(source.occurred_at) FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
    WHERE e.memory_id = :id AND e.role = 'derived_from' AND source.occurred_at > :after
    """
)


def reinforce(tx: Transaction, reflection_id: int, new: Memory, old: Memory) -> None:
    """Count a reinforcement on both facts, and link the new fact to the old fact."""
    tx.execute(_REINFORCE, {"ids": [new.id, old.id], "reflection": reflection_id, "times": 1})
    evidence.link(tx, new.namespace_id, new.id, [old.id], "reinforces", reflection_id=reflection_id)


def merge(tx: Transaction, reflection_id: int, kept: Memory, other: Memory) -> None:
    """Let ``kept`` stand for ``other``, which says the same. ``kept`` gets the sources of ``other``.

    Each source that ``kept`` did not have before counts as one reinforcement. ``other`` ends at the time from which
    both facts are valid. Conclusions that rest on ``other`` stay, because what they rest on still holds.
    """
    sources = tx.scalars(
        select(Evidence.source_id).where(Evidence.memory_id == other.id, Evidence.role == "derived_from")
    ).all()
    added = evidence.link(tx, kept.namespace_id, kept.id, sources, "derived_from", reflection_id=reflection_id)
    if added:
        tx.execute(_REINFORCE, {"ids": [kept.id], "reflection": reflection_id, "times": len(added)})
        expiry.settle(tx, [kept.id])
    evidence.link(tx, other.namespace_id, other.id, [kept.id], "duplicate_of", reflection_id=reflection_id)
    when = max(one.valid_from or one.occurred_at for one in (kept, other))
    tx.execute(
        update(Memory)
        .where(Memory.id == other.id, Memory.valid_to.is_(None))
        .values(valid_to=when, superseded_by=kept.id)
    )
    ended = {"reflection": reflection_id, "id": other.id, "namespace": other.namespace_id, "by": kept.id, "at": when}
    tx.execute(_SUPERSEDED, ended)


def weaken(tx: Transaction, reflection_id: int, memory_id: int) -> None:
    """Lower a fact's confidence by ``CONTRADICTION_PENALTY``. The confidence does not fall below 0."""
    tx.execute(_WEAKEN, {"id": memory_id, "by": CONTRADICTION_PENALTY, "reflection": reflection_id})


def takeover_time(tx: Transaction, old: Memory, new: Memory) -> datetime:
    """The time at which the fact ``new`` takes the place of the fact ``old``.

    - If ``new`` became valid after ``old``, or at the same time, the result is the time when ``new`` became valid.
    - If ``old`` became valid after ``new``, and a still later message repeated ``new``, the result is the time of the
      first such message.
    - If ``old`` became valid after ``new``, and no later message repeated ``new``, the result is the time when ``old``
      became valid. The fact ``old`` then ends when it begins, so it was never valid.
    """
    since = new.valid_from or datetime.now(UTC)
    if old.valid_from is None or since >= old.valid_from:
        return since
    return tx.scalar(_SAID_AFTER, {"id": new.id, "after": old.valid_from}) or old.valid_from


def supersede(tx: Transaction, reflection_id: int, old: Memory, new: Memory, when: datetime) -> None:
    """End the fact ``old`` at the time ``when``, and record that the fact ``new`` supersedes it.

    Conclusions that rest on ``old`` may end too; see :func:`nexus_tasks.storage.validity.settle_conclusions`.

    Args:
        when: the result of :func:`takeover_time`.
    """
    tx.execute(
        update(Memory).where(Memory.id == old.id, Memory.valid_to.is_(None)).values(valid_to=when, superseded_by=new.id)
    )
    ended = {"reflection": reflection_id, "id": old.id, "namespace": old.namespace_id, "by": new.id, "at": when}
    tx.execute(_SUPERSEDED, ended)
    evidence.link(tx, new.namespace_id, new.id, [old.id], "supersedes", reflection_id=reflection_id)
    validity.settle_conclusions(tx, [old.id])


def judged_ids(relations: Sequence[tuple[int, int]], insights: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The value of a reflection row's column ``judged``: the memory ids in the model's answer.

    Args:
        relations: pairs of ids of two related facts.
        insights: for each insight, the ids of the facts that it rests on.
    """
    return {
        "pairs": [sorted(pair) for pair in relations],
        "insights": [sorted(set(support)) for support in insights],
    }
