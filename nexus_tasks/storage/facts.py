"""Explicit facts: inserting them, or reinforcing the one that says the same already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Evidence, Memory, PerspectiveRow
from nexus_tasks.text import content_key, estimate_tokens


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A validated fact, ready to be stored. ``sources`` are memory ids; ``valid_from`` is their earliest time."""

    subject: str
    content: str
    category: str
    confidence: float
    labels: tuple[str, ...]
    sources: tuple[int, ...]
    valid_from: datetime
    session_id: int | None
    made_by: str

    @property
    def key(self) -> str:
        """What makes two wordings the same fact."""
        return content_key(self.content)


class Kept(StrEnum):
    """What became of a draft."""

    NEW = "new"
    REWORDED = "reworded"  # it was there, in the words of a later source
    REINFORCED = "reinforced"


def keep(tx: Transaction, perspective: PerspectiveRow, draft: Draft) -> tuple[int, Kept]:
    """Store a fact of a locked perspective; returns its id and what became of it.

    A fact that is there already is reinforced by every source it did not rest on yet. Its wording is that of its
    earliest source, whichever derivation came first: the stored facts do not depend on the order of the jobs.
    """
    existing = tx.scalar(
        select(Memory).where(
            Memory.namespace_id == perspective.namespace_id,
            Memory.perspective_id == perspective.id,
            Memory.content_key == draft.key,
            Memory.level == "explicit",
            Memory.valid_to.is_(None),
        )
    )
    if existing is None:
        return _insert(tx, perspective, draft), Kept.NEW
    new = link(tx, perspective.namespace_id, existing.id, draft.sources, "derived_from")
    earlier = existing.valid_from is not None and (draft.valid_from, draft.content) < (
        existing.valid_from,
        existing.content,
    )
    if new:
        values: dict[str, Any] = {
            "times_reinforced": Memory.times_reinforced + len(new),
            "last_validated_at": datetime.now(UTC),
            "confidence": max(existing.confidence, draft.confidence),
        }
        if earlier:
            values |= {"content": draft.content, "valid_from": draft.valid_from, "occurred_at": draft.valid_from}
        tx.execute(update(Memory).where(Memory.id == existing.id).values(**values))
        tx.expire(existing)
    return existing.id, Kept.REWORDED if new and earlier else Kept.REINFORCED


def _insert(tx: Transaction, perspective: PerspectiveRow, draft: Draft) -> int:
    statement = (
        insert(Memory)
        .values(
            namespace_id=perspective.namespace_id,
            perspective_id=perspective.id,
            session_id=draft.session_id,
            level="explicit",
            author=perspective.subject,
            content=draft.content,
            tokens=estimate_tokens(draft.content),
            content_key=draft.key,
            category=draft.category,
            confidence=draft.confidence,
            labels=list(draft.labels),
            occurred_at=draft.valid_from,
            valid_from=draft.valid_from,
            made_by=draft.made_by,
        )
        .returning(Memory.id)
    )
    memory_id = tx.execute(statement).scalar_one()
    link(tx, perspective.namespace_id, memory_id, draft.sources, "derived_from")
    return memory_id


def link(tx: Transaction, namespace_id: int, memory_id: int, sources: Sequence[int], role: str) -> list[int]:
    """Add evidence edges; returns the sources that were not linked in this role before."""
    if not sources:
        return []
    rows = [
        {"namespace_id": namespace_id, "memory_id": memory_id, "source_id": source, "role": role}
        for source in sorted(set(sources))
    ]
    added = tx.execute(upsert(Evidence).values(rows).on_conflict_do_nothing().returning(Evidence.source_id))
    return list(added.scalars())
