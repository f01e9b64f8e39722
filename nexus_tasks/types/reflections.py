"""Reflections: the receipt of undoing a reflection, and the plan of a dream's reflections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class UndoReceipt(Document):
    """What undoing a reflection did."""

    reflection: int  # its number
    observer: str
    subject: str
    status: Literal["undone", "unchanged"]  # unchanged: it was undone before
    removed: tuple[int, ...]  # ids of the reflection's own memories
    revived: tuple[int, ...]  # ids of facts that the reflection superseded and that hold again
    restored: tuple[int, ...]  # ids of facts that have their earlier counters, confidence or validity again


@dataclass(frozen=True, kw_only=True)
class PlannedRelation(Document):
    """How a reflection would relate a new fact to an earlier one."""

    kind: Literal["duplicate", "reinforces", "contradicts"]
    new_id: int
    old_id: int
    holds: Literal["new", "old", "both"]  # of a contradiction: which fact holds; both: undecided
    rationale: str
    new: str  # the new fact's text
    old: str  # the earlier fact's text


@dataclass(frozen=True, kw_only=True)
class PlannedInsight(Document):
    """What a reflection would conclude from several facts."""

    content: str
    support: tuple[int, ...]  # ids of the facts
    rationale: str


@dataclass(frozen=True, kw_only=True)
class ReflectionPlan(Document):
    """What a reflection on a perspective would do."""

    observer: str
    subject: str
    facts: int  # new facts that it has read
    held: bool  # it would wait for a person's review, because it changes too much at once
    supersedes: tuple[int, ...]  # ids of the facts that it would supersede
    relations: tuple[PlannedRelation, ...]
    insights: tuple[PlannedInsight, ...]


@dataclass(frozen=True, kw_only=True)
class DreamPlan(Document):
    """What a dream would do."""

    namespace: str
    sessions: tuple[str, ...]  # keys of the sessions that it would digest
    reflections: tuple[ReflectionPlan, ...]
