"""Reflections: the receipt of undoing a reflection, and the plan of a dream's reflections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class UndoReceipt(Document):
    """The memories that the undo of a reflection has changed."""

    reflection: int  # the reflection's number
    observer: str
    subject: str
    status: Literal["undone", "unchanged"]  # unchanged: an earlier call undid the reflection
    removed: tuple[int, ...]  # ids of the memories that the reflection made; the undo deleted them
    revived: tuple[int, ...]  # ids of the facts that the reflection had superseded; they are valid again
    restored: tuple[int, ...]  # ids of the facts that got back their earlier counters, confidence or validity


@dataclass(frozen=True, kw_only=True)
class PlannedRelation(Document):
    """How a reflection would relate a new fact to an earlier one."""

    kind: Literal["duplicate", "reinforces", "contradicts"]
    new_id: int
    old_id: int
    holds: Literal["new", "old", "both"]  # the fact that stays valid after a contradiction; both: undecided
    rationale: str
    new: str  # the new fact's text
    old: str  # the earlier fact's text


@dataclass(frozen=True, kw_only=True)
class PlannedInsight(Document):
    """A conclusion that a reflection would draw from several facts."""

    content: str
    support: tuple[int, ...]  # ids of the facts
    rationale: str


@dataclass(frozen=True, kw_only=True)
class ReflectionPlan(Document):
    """The changes that a reflection on a perspective (an observer and a subject) would make."""

    observer: str
    subject: str
    facts: int  # number of new facts that the reflection has read
    held: bool  # whether the reflection would wait for a person's review, because it would change too many facts
    supersedes: tuple[int, ...]  # ids of the facts that the reflection would supersede
    relations: tuple[PlannedRelation, ...]
    insights: tuple[PlannedInsight, ...]


@dataclass(frozen=True, kw_only=True)
class DreamPlan(Document):
    """The sessions and reflections of the dream (the scheduled consolidation) that would begin now."""

    namespace: str
    sessions: tuple[str, ...]  # keys of the sessions that the dream would digest
    reflections: tuple[ReflectionPlan, ...]
