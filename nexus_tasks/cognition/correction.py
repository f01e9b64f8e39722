"""Replace a fact by a corrected fact, and pin memories.

A correction is stored as a reflection with one change: the new fact supersedes the old memory. ``undo`` deletes the new
fact with its message, and makes the old memory valid again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, func, select, update

from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.storage import conclusions, facts, perspectives
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow, ReflectionChange, ReflectionRow
from nexus_tasks.types import Message, to_utc
from nexus_tasks.types.names import standing_rank

LEVELS = ("explicit", "derived")
_INSTEAD = {
    "raw": "Store the message again under its id with replace=True (`nexus ingest --replace`), or forget it.",
    "contradiction": "Correct one of the two facts that contradict each other.",
    "summary_short": "Make the digest again: `nexus digest SESSION --rebuild`.",
    "summary_long": "Make the digest again: `nexus digest SESSION --rebuild`.",
}


@dataclass(frozen=True, kw_only=True)
class Correctable:
    """A locked memory with its locked perspective."""

    memory: Memory
    perspective: PerspectiveRow


def lock(tx: Transaction, namespace_id: int, memory_id: int) -> Correctable:
    """Lock a fact or conclusion and its perspective. No job changes facts of the perspective until ``tx`` ends.

    Raises:
        NotFound: the namespace has no such memory.
        InvalidInput: the memory is a message, a digest or a contradiction.
    """
    query = select(Memory).where(Memory.namespace_id == namespace_id, Memory.id == memory_id)
    found = tx.scalar(query)
    if found is None:
        raise NotFound(f"There is no memory {memory_id} here.")
    if found.level not in LEVELS or found.perspective_id is None:
        raise InvalidInput(f"m{memory_id} is no fact, but of level {found.level}.", remedy=_INSTEAD[found.level])
    owner = tx.get_one(PerspectiveRow, found.perspective_id)
    perspective = perspectives.lock(tx, namespace_id, owner.observer, [owner.subject])[owner.subject]
    found = tx.scalar(query.with_for_update().execution_options(populate_existing=True))
    if found is None:
        raise NotFound(f"There is no memory {memory_id} here.")
    return Correctable(memory=found, perspective=perspective)


def superseded(memory: Memory) -> InvalidInput:
    """The error for a memory that no longer holds."""
    heir = f"m{memory.superseded_by}" if memory.superseded_by else "the memory that holds now"
    return InvalidInput(f"m{memory.id} is superseded already.", remedy=f"Correct {heir} instead.")


def existing_heir(tx: Transaction, old: Correctable, content: str) -> int | None:
    """The memory that superseded ``old`` with this content, when an earlier call made the same correction."""
    heir = old.memory.superseded_by
    said = tx.scalar(select(Memory.content).where(Memory.id == heir)) if heir else None
    return heir if said == content else None


def same_fact(tx: Transaction, old: Correctable, message: Message) -> int | None:
    """Another valid fact of the perspective that says the same as ``message``, and lasts at least as long."""
    ends = Memory.expires_at
    lasts = ends.is_(None) if message.expires_at is None else ends.is_(None) | (ends >= to_utc(message.expires_at))
    query = select(Memory.id).where(*_said_already(old, message), lasts, ends.is_(None) | (ends > func.now()))
    return tx.scalar(query)


def _said_already(old: Correctable, message: Message) -> list[ColumnElement[bool]]:
    return [
        Memory.namespace_id == old.memory.namespace_id,
        Memory.perspective_id == old.perspective.id,
        Memory.content_key == facts.key_of(message.content, _begin(old, message)),
        Memory.level == "explicit",
        Memory.valid_to.is_(None),
        Memory.id != old.memory.id,
    ]


def _begin(old: Correctable, message: Message) -> datetime:
    """The time from which a correction holds: when it was said, and not before what it corrects."""
    assert message.occurred_at is not None
    return max(to_utc(message.occurred_at), old.memory.valid_from or datetime.min.replace(tzinfo=UTC))


def revise(tx: Transaction, old: Correctable, message: Message, source: int | None, same: int | None) -> int:
    """Supersede a memory. Returns the id of the fact that holds now.

    A fact that says the same and ends before the correction does, or has expired, is superseded too: a perspective has
    at most one valid fact of a content.

    Args:
        source: the id of the stored ``message``; ``None`` when ``same`` is given.
        same: a fact that says the same already, and now supersedes ``old``.
    """
    memory, owner = old.memory, old.perspective
    when = _begin(old, message)
    ended = [memory, *(tx.scalars(select(Memory).where(*_said_already(old, message))) if same is None else ())]
    # The old facts end first: a perspective has at most one valid fact of a content.
    tx.execute(update(Memory).where(Memory.id.in_([one.id for one in ended])).values(valid_to=when))
    pair = [(memory.id, same)] if same else []
    reflection = conclusions.begin(tx, owner, f"correction:{uuid.uuid4()}", conclusions.judged_ids(pair, []))
    if same is None:
        assert source is not None
        draft = facts.FactDraft(
            subject=owner.subject,
            content=message.content,
            category=memory.category or "fact",
            confidence=1.0,
            labels=tuple(memory.labels),
            sources=(source,),
            valid_from=when,
            session_id=tx.scalar(select(Memory.session_id).where(Memory.id == source)),
            made_by="correction",
            standing=standing_rank("self" if message.author == owner.subject else "other"),
        )
        [stored] = facts.store(tx, {owner.subject: owner}, [draft])
        made = update(Memory).where(Memory.id.in_((stored.id, source))).values(reflection_id=reflection)
        tx.execute(made.execution_options(synchronize_session=False))
        if any(one.pinned_at is not None for one in ended):
            tx.execute(update(Memory).where(Memory.id == stored.id).values(pinned_at=func.now()))
    heir = tx.get_one(Memory, same or stored.id)
    tx.execute(update(Memory).where(Memory.id.in_([one.id for one in ended])).values(superseded_by=heir.id))
    for one in ended:
        conclusions.supersede(tx, reflection, one, heir, when)
    return heir.id


def number_of(tx: Transaction, old_id: int, heir_id: int) -> int | None:
    """The number of the correction that let ``heir_id`` take the place of ``old_id``; ``None`` when none did."""
    return tx.scalar(
        select(ReflectionRow.id)
        .join(ReflectionChange, ReflectionChange.reflection_id == ReflectionRow.id)
        .where(
            ReflectionChange.memory_id == old_id,
            ReflectionChange.superseded_by == heir_id,
            ReflectionRow.undone_at.is_(None),
            ReflectionRow.job_id.startswith("correction:"),
        )
        .order_by(ReflectionRow.id.desc())
        .limit(1)
    )


def pin(tx: Transaction, found: Correctable, *, pinned: bool) -> bool:
    """Pin or unpin a memory. Returns whether that changed it.

    Raises:
        InvalidInput: the memory is to be pinned and is superseded.
    """
    if pinned and found.memory.valid_to is not None:
        raise superseded(found.memory)
    if pinned == (found.memory.pinned_at is not None):
        return False
    now = func.now() if pinned else None
    tx.execute(update(Memory).where(Memory.id == found.memory.id).values(pinned_at=now))
    return True
