"""Storing facts (memories of level ``explicit``).

A new fact is inserted. When the fact exists already, its number of reinforcements rises instead. A fact belongs to a
perspective: the memories of one observer about one subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select, text, update

from nexus_tasks.event_time import Span, relative_time, zone
from nexus_tasks.storage import evidence, expiry
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory, PerspectiveRow
from nexus_tasks.text import content_key, estimate_tokens


@dataclass(frozen=True, kw_only=True)
class FactDraft:
    """A validated fact to store.

    ``sources`` are the ids of the messages that the fact was derived from. ``valid_from`` is the time of the earliest
    of these messages.
    """

    subject: str
    content: str
    category: str
    confidence: float
    labels: tuple[str, ...]
    sources: tuple[int, ...]
    valid_from: datetime
    session_id: int | None
    made_by: str
    standing: int  # the rank of the fact's standing (see ``types.names.standing_rank``)
    event: Span | None = None  # the time of which the fact speaks
    time_zone: str | None = None  # the time zone of the earliest source's speaker; ``None`` means UTC

    @property
    def key(self) -> str:
        """The normalised content. Two drafts of a perspective with equal keys are the same fact.

        See :func:`key_of`.
        """
        return key_of(self.content, self.valid_from, self.time_zone)


def key_of(content: str, said: datetime, time_zone: str | None = None) -> str:
    """The normalised ``content`` of a fact. Two facts of a perspective with equal keys are the same fact.

    "I swam last Friday" is another fact a week later, so the key of such a content ends with the day that it means.
    """
    meant = relative_time(content, said, zone(time_zone))
    return f"{content_key(content)}@{meant.begin:%Y-%m-%d}" if meant else content_key(content)


class FactChange(StrEnum):
    """The effect of storing a draft."""

    NEW = "new"
    REWORDED = "reworded"  # the fact existed, and got the draft's wording, because the draft's source is earlier
    REINFORCED = "reinforced"  # the fact existed, and kept its wording


@dataclass(frozen=True, kw_only=True)
class StoredFact:
    """A stored fact: its memory id, its wording after storing, and the effect of storing."""

    id: int
    content: str
    change: FactChange


def store(tx: Transaction, perspectives: Mapping[str, PerspectiveRow], drafts: Sequence[FactDraft]) -> list[StoredFact]:
    """Store facts, and return one :class:`StoredFact` for each fact.

    One insert stores all new facts. For an existing fact, every source that the fact did not have before counts as one
    reinforcement. A fact has the wording of the draft with the earliest source. Therefore its wording does not depend
    on the order of the derivations. Each draft supports the fact independently, so a fact has the highest standing of
    its drafts.

    A draft is left out when its messages alone have made the same fact before, and that fact has ended. Such messages
    are derived again after an erasure. What was superseded or corrected since does not hold again because of that.

    Args:
        perspectives: subject → perspective. The caller has locked the perspectives.
        drafts: the facts to store. Several drafts may be the same fact.
    """
    groups: dict[tuple[int, str], list[FactDraft]] = {}
    for draft in drafts:
        groups.setdefault((perspectives[draft.subject].id, draft.key), []).append(draft)
    if not groups:
        return []
    owners = {row.id: row for row in perspectives.values()}
    namespace_id = next(iter(owners.values())).namespace_id
    existing = _existing(tx, namespace_id, list(groups))
    fresh = _unsaid(tx, {where: group for where, group in groups.items() if where not in existing})
    groups = {where: fresh.get(where, group) for where, group in groups.items() if where in existing or where in fresh}
    ids = dict(zip(fresh, _insert(tx, owners, fresh), strict=True)) if fresh else {}
    ids |= {where: memory.id for where, memory in existing.items()}
    edges = [(ids[where], source) for where, group in groups.items() for draft in group for source in draft.sources]
    added = Counter(memory_id for memory_id, _ in evidence.link_all(tx, namespace_id, edges, "derived_from"))
    stored = [
        StoredFact(id=ids[where], content=_earliest(group).content, change=FactChange.NEW)
        for where, group in fresh.items()
    ]
    stored += [_reinforce(tx, memory, groups[where], added[memory.id]) for where, memory in existing.items()]
    expiry.settle(tx, ids.values())
    return stored


@dataclass(frozen=True)
class _Existing:
    id: int
    content: str
    confidence: float
    valid_from: datetime


_EXISTING = text(
    """
    SELECT perspective_id, content_key, id, content, confidence, valid_from FROM memories
    WHERE namespace_id = :namespace_id AND level = 'explicit' AND valid_to IS NULL
      AND perspective_id = ANY(CAST(:perspectives AS bigint[])) AND content_key = ANY(CAST(:keys AS text[]))
    """
)


def _existing(
    tx: Transaction, namespace_id: int, wanted: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], _Existing]:
    values = {
        "namespace_id": namespace_id,
        "perspectives": sorted({perspective for perspective, _ in wanted}),
        "keys": sorted({key for _, key in wanted}),
    }
    found = {(perspective, key): _Existing(*row) for perspective, key, *row in tx.execute(_EXISTING, values)}
    return {where: found[where] for where in wanted if where in found}


_ENDED = text(
    """
    SELECT m.perspective_id, m.content_key, e.source_id
    FROM evidence AS e JOIN memories AS m ON m.id = e.memory_id
    WHERE e.source_id = ANY(CAST(:sources AS bigint[])) AND e.role = 'derived_from'
      AND m.level = 'explicit' AND m.valid_to IS NOT NULL
    """
)


def _unsaid(
    tx: Transaction, groups: Mapping[tuple[int, str], list[FactDraft]]
) -> dict[tuple[int, str], list[FactDraft]]:
    """The drafts that are no facts which have ended and rest on the drafts' messages."""
    sources = {source for group in groups.values() for draft in group for source in draft.sources}
    said: dict[tuple[int, str], set[int]] = {}
    for perspective_id, key, source in tx.execute(_ENDED, {"sources": sorted(sources)}):
        said.setdefault((perspective_id, key), set()).add(source)
    left = {
        where: [one for one in group if not (one.sources and said.get(where, set()).issuperset(one.sources))]
        for where, group in groups.items()
    }
    return {where: group for where, group in left.items() if group}


MOST_WORDINGS = 500  # chosen by hand: an agent repeats what it was shown, and that is seldom old


def wordings(tx: Transaction, namespace_id: int, observer: str, subjects: Sequence[str]) -> list[str]:
    """The texts of an observer's newest facts about ``subjects``, at most 500. Superseded facts are left out."""
    query = (
        select(Memory.content)
        .join(PerspectiveRow, PerspectiveRow.id == Memory.perspective_id)
        .where(
            PerspectiveRow.namespace_id == namespace_id,
            PerspectiveRow.observer == observer,
            PerspectiveRow.subject.in_(subjects),
            Memory.level == "explicit",
            Memory.valid_to.is_(None),
        )
        .order_by(Memory.id.desc())
        .limit(MOST_WORDINGS)
    )
    return list(tx.scalars(query))


def _earliest(group: Sequence[FactDraft]) -> FactDraft:
    return min(group, key=lambda draft: (draft.valid_from, draft.content))


def _insert(
    tx: Transaction, owners: Mapping[int, PerspectiveRow], groups: Mapping[tuple[int, str], Sequence[FactDraft]]
) -> list[int]:
    now = datetime.now(UTC)
    rows = []
    for (perspective_id, key), group in groups.items():
        first, owner = _earliest(group), owners[perspective_id]
        again = len({source for draft in group for source in draft.sources}) - len(first.sources)
        rows.append(
            {
                "namespace_id": owner.namespace_id,
                "perspective_id": perspective_id,
                "level": "explicit",
                "author": owner.subject,
                "content_key": key,
                "confidence": max(draft.confidence for draft in group),
                "standing": max(draft.standing for draft in group),
                "times_reinforced": again,
                "last_validated_at": now if again else None,
                **_worded(first),
            }
        )
    return [memory_id for (memory_id,) in insert_rows(tx, Memory, rows, returning="id")]


def _worded(first: FactDraft) -> dict[str, Any]:
    """The columns that a fact gets from the draft with the earliest source."""
    return {
        "content": first.content,
        "tokens": estimate_tokens(first.content),
        "category": first.category,
        "labels": list(first.labels),
        "session_id": first.session_id,
        "occurred_at": first.valid_from,
        "valid_from": first.valid_from,
        "made_by": first.made_by,
        "event_from": first.event.begin if first.event else None,
        "event_to": first.event.end if first.event else None,
        "time_zone": first.time_zone,
    }


def _reinforce(tx: Transaction, memory: _Existing, group: Sequence[FactDraft], added: int) -> StoredFact:
    """Add ``added`` reinforcements to a fact.

    If a draft's source is earlier than the sources of the fact, the fact gets the wording of this draft.
    """
    first = _earliest(group)
    earlier = added > 0 and (first.valid_from, first.content) < (memory.valid_from, memory.content)
    if added:
        values: dict[str, Any] = {
            "times_reinforced": Memory.times_reinforced + added,
            "last_validated_at": datetime.now(UTC),
            "confidence": max(memory.confidence, *(draft.confidence for draft in group)),
            "standing": func.greatest(Memory.standing, max(draft.standing for draft in group)),
        }
        if earlier:
            values |= _worded(first)
        tx.execute(update(Memory).where(Memory.id == memory.id).values(**values))
    change = FactChange.REWORDED if earlier else FactChange.REINFORCED
    return StoredFact(id=memory.id, content=first.content if earlier else memory.content, change=change)
