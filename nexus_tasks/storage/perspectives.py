"""Storing and reading perspectives. A perspective is the set of memories of one observer about one subject.

A perspective's watermark is the id of the last fact that a reflection has read. A fact is unread when its id is above
the watermark, or when a reflection must judge it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ScalarSelect, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.storage.newest import newest
from nexus_tasks.types import PerspectiveInfo


def lock(tx: Transaction, namespace_id: int, observer: str, subjects: Sequence[str]) -> dict[str, PerspectiveRow]:
    """Lock the perspectives of ``observer`` on ``subjects`` until the transaction ends.

    Missing perspectives are created. The locks are taken in the order of ids, so that two transactions cannot deadlock.
    While a perspective is locked, no other transaction adds a fact to it. Therefore the ids of a perspective's facts
    grow in the order of the commits, and the watermark ``reflected_through`` never skips a fact that is not committed
    yet.

    Returns:
        subject → perspective.
    """
    found = _locked(tx, namespace_id, observer, subjects)
    missing = sorted(set(subjects) - set(found))
    if missing:
        rows = [{"namespace_id": namespace_id, "observer": observer, "subject": subject} for subject in missing]
        tx.execute(insert(PerspectiveRow).values(rows).on_conflict_do_nothing())
        found = _locked(tx, namespace_id, observer, subjects)
    return found


# The locks are taken in one order, so that two transactions cannot deadlock.
_TAKE_TURN = text(
    """
    SELECT pg_advisory_xact_lock(turn) FROM (
        SELECT DISTINCT hashtextextended(concat_ws(' ', 'nexus facts', CAST(:observer AS text), subject), :namespace_id)
            AS turn
        FROM unnest(CAST(:subjects AS text[])) AS subject ORDER BY turn
    ) AS turns
    """
)


def take_turn(tx: Transaction, namespace_id: int, observer: str, subjects: Collection[str]) -> None:
    """Wait until no other derivation stores facts of ``observer`` about one of ``subjects``.

    A derivation takes its turn before it locks its session. Otherwise it would keep the session locked while it waits
    for the perspectives, and no message could be stored in the session.
    """
    if subjects:
        values = {"namespace_id": namespace_id, "observer": observer, "subjects": sorted(set(subjects))}
        tx.execute(_TAKE_TURN, values)


_LOCK = select(PerspectiveRow).from_statement(
    text(
        """
        SELECT * FROM perspectives
        WHERE namespace_id = :namespace_id AND observer = :observer AND subject = ANY(CAST(:subjects AS text[]))
        ORDER BY id FOR NO KEY UPDATE
        """
    )
)


def _locked(tx: Transaction, namespace_id: int, observer: str, subjects: Sequence[str]) -> dict[str, PerspectiveRow]:
    if not subjects:
        return {}
    values = {"namespace_id": namespace_id, "observer": observer, "subjects": sorted(set(subjects))}
    rows = tx.scalars(_LOCK, values, execution_options={"populate_existing": True})
    return {row.subject: row for row in rows}


def listed(tx: Transaction, namespace_id: int, *, limit: int, offset: int) -> list[PerspectiveInfo]:
    """A page of a namespace's perspectives with their counts, sorted by observer and subject."""
    valid = (
        select(func.count())
        .where(
            Memory.perspective_id == PerspectiveRow.id,
            Memory.valid_to.is_(None),
            Memory.expires_at.is_(None) | (Memory.expires_at > func.now()),
        )
        .correlate(PerspectiveRow)
        .scalar_subquery()
    )
    query = (
        select(PerspectiveRow.observer, PerspectiveRow.subject, valid, _unreflected())
        .where(PerspectiveRow.namespace_id == namespace_id)
        .order_by(PerspectiveRow.observer, PerspectiveRow.subject)
        .limit(limit)
        .offset(offset)
    )
    return [
        PerspectiveInfo(observer=observer, subject=subject, memories=memories, unreflected=unreflected)
        for observer, subject, memories, unreflected in tx.execute(query)
    ]


def find(tx: Transaction, namespace_id: int, observer: str, subject: str) -> PerspectiveRow | None:
    """The perspective, or ``None``."""
    return tx.scalar(
        select(PerspectiveRow).where(
            PerspectiveRow.namespace_id == namespace_id,
            PerspectiveRow.observer == observer,
            PerspectiveRow.subject == subject,
        )
    )


def _unreflected() -> ScalarSelect[int]:
    return (
        select(func.count())
        .where(
            Memory.perspective_id == PerspectiveRow.id,
            Memory.level == "explicit",
            Memory.id > PerspectiveRow.reflected_through,
        )
        .correlate(PerspectiveRow)
        .scalar_subquery()
    )


# A fact that must be judged again does not wait until there are `at_least` unread facts.
_AGAIN = func.cardinality(PerspectiveRow.again) > 0


_UNREFLECTED = text(
    """
    SELECT p.id, count(m.id) + cardinality(p.again) FROM perspectives p
    LEFT JOIN memories m ON m.perspective_id = p.id AND m.level = 'explicit' AND m.id > p.reflected_through
    WHERE p.id = ANY(CAST(:ids AS bigint[])) GROUP BY p.id
    """
)


def count_unreflected(tx: Transaction, perspective_ids: Sequence[int]) -> dict[int, int]:
    """Count the unread facts of each perspective: perspective id → number of facts."""
    if not perspective_ids:
        return {}
    return dict(tx.execute(_UNREFLECTED, {"ids": list(perspective_ids)}).all())


def wanted(
    tx: Transaction, namespace_id: int, *, at_least: int = 1, limit: int = 1_000, include_held: bool = False
) -> list[tuple[str, str]]:
    """Perspectives of a namespace that need a reflection, as (observer, subject).

    A perspective needs a reflection in two cases:

    - It has no stored plan, and ``at_least`` or more of its facts are new (no reflection has read them). One fact that
      must be judged again is enough.
    - It has a stored plan (of a reflection that would change too much at once), and a person has released the plan.

    A perspective whose reflection gave up is left out.

    Args:
        at_least: the smallest number of new facts.
        limit: the largest number of perspectives.
        include_held: also return perspectives whose stored plan waits for a person's review.
    """
    free = PerspectiveRow.held.is_(None) & ((_unreflected() >= at_least) | _AGAIN)
    released = PerspectiveRow.held.is_not(None) if include_held else PerspectiveRow.held["released"].as_boolean()
    query = (
        select(PerspectiveRow.observer, PerspectiveRow.subject)
        .where(PerspectiveRow.namespace_id == namespace_id, ~PerspectiveRow.dead, free | released)
        .order_by(PerspectiveRow.id)
        .limit(limit)
    )
    return [(observer, subject) for observer, subject in tx.execute(query)]


# The statement counts at most `at_least` facts of each perspective, which saves time when many facts are unread.
_PAGE = text(
    """
    SELECT page.id, n.name, page.observer, page.subject,
           CASE WHEN page.held IS NULL THEN cardinality(page.again) > 0 OR :at_least <= (
               SELECT count(*) FROM (
                   SELECT FROM memories m WHERE m.perspective_id = page.id AND m.level = 'explicit'
                     AND m.id > page.reflected_through ORDER BY m.id LIMIT :at_least) AS unreflected)
           ELSE coalesce(CAST(page.held ->> 'released' AS boolean), false) END AS ready
    FROM (SELECT * FROM perspectives WHERE NOT dead AND id > :after ORDER BY id LIMIT :limit) AS page
    JOIN namespaces AS n ON n.id = page.namespace_id ORDER BY page.id
    """
)
newest_alive = newest("perspectives", "NOT dead")


def page(tx: Transaction, after: int, limit: int, *, at_least: int) -> list[tuple[int, str, str, str, bool]]:
    """At most ``limit`` perspectives whose reflection has not given up, in the order of their ids.

    Each is (id, namespace, observer, subject, ready). ``ready`` says whether the perspective needs a reflection.
    :func:`wanted` lists the cases.

    Args:
        after: only perspectives whose id is above this id.
    """
    return list(tx.execute(_PAGE, {"after": after, "limit": limit, "at_least": at_least}).all())


def advance(tx: Transaction, perspective_id: int, *, seen: int, through: int) -> bool:
    """Move the watermark from ``seen`` to ``through``.

    Returns ``False`` and changes nothing when another run has moved the watermark.
    """
    moved = tx.execute(
        update(PerspectiveRow)
        .where(PerspectiveRow.id == perspective_id, PerspectiveRow.reflected_through == seen)
        .values(reflected_through=through)
        .returning(PerspectiveRow.id)
    )
    return moved.first() is not None


def judge_again(tx: Transaction, perspective_id: int, fact_ids: Iterable[int]) -> None:
    """Store which facts of a perspective a reflection must judge again. It replaces what was stored before."""
    tx.execute(update(PerspectiveRow).where(PerspectiveRow.id == perspective_id).values(again=sorted(set(fact_ids))))


_JUDGE_ALSO = text(
    """
    UPDATE perspectives AS p
    SET again = ARRAY(SELECT DISTINCT one FROM unnest(p.again || found.ids) AS one ORDER BY one)
    FROM (
        SELECT perspective_id, array_agg(id) AS ids FROM memories
        WHERE id = ANY(CAST(:ids AS bigint[])) AND level = 'explicit' GROUP BY perspective_id
    ) AS found
    WHERE p.id = found.perspective_id
    """
)


def judge_also(tx: Transaction, memory_ids: Collection[int]) -> None:
    """Let reflections judge the facts among these memories again, beside those that they must judge again already."""
    if memory_ids:
        tx.execute(_JUDGE_ALSO, {"ids": sorted(memory_ids)})


def mark(tx: Transaction, namespace_id: int, observer: str, subject: str, *, dead: bool) -> None:
    """Mark a perspective ``dead`` when its reflection gave up, or remove the mark for a retry of the job."""
    tx.execute(
        update(PerspectiveRow)
        .where(
            PerspectiveRow.namespace_id == namespace_id,
            PerspectiveRow.observer == observer,
            PerspectiveRow.subject == subject,
        )
        .values(dead=dead)
    )


_DROP = text(
    """
    UPDATE perspectives AS p
    SET dead = false, held = p.held - 'released',
        again = CASE WHEN p.held IS NULL THEN '{}' ELSE p.again END,
        reflected_through = CASE WHEN p.held IS NULL THEN greatest(p.reflected_through, (
            SELECT max(id) FROM memories WHERE perspective_id = p.id AND level = 'explicit'
        )) ELSE p.reflected_through END
    WHERE namespace_id = :namespace_id AND observer = :observer AND subject = :subject
    """
)


def drop(tx: Transaction, namespace_id: int, observer: str, subject: str) -> None:
    """Count the present facts of a perspective as read, because its reflection was dropped. Later facts are new.

    A plan that a person has released waits for a review again.
    """
    tx.execute(_DROP, {"namespace_id": namespace_id, "observer": observer, "subject": subject})
