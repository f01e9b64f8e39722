"""A dry run of a dream: list the digests and reflections that the dream would make, without changing a memory."""

from __future__ import annotations

from collections.abc import Mapping

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.reflect import review
from nexus_tasks.cognition.reflect.apply import pending_changes
from nexus_tasks.cognition.reflect.new_facts import choose_new_facts
from nexus_tasks.cognition.reflect.propose import Proposal, propose
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.llm.answers import Relation
from nexus_tasks.storage import dreams, perspectives, reflections
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.types import DreamPlan, PlannedInsight, PlannedRelation, ReflectionPlan


def plan_dream(resources: Resources, job: JobContext) -> DreamPlan:
    """The sessions that a dream would digest now, and the plan of each reflection that the dream would make.

    The model is asked live, not in a message batch. The calls are entered in the ledger, and the answers are saved, so
    the dream does not pay for them again. No memory changes. The plan of a perspective covers only its next hundred new
    facts.
    """
    with resources.database.transaction() as tx:
        sessions = tuple(due.session_key for due in dreams.due_sessions(tx, job.namespace_id))
        due = _due_perspectives(tx, job.namespace_id)
    plans = (_plan_reflection(resources, job, observer, subject) for observer, subject in due)
    return DreamPlan(namespace=job.namespace, sessions=sessions, reflections=tuple(plan for plan in plans if plan))


def _due_perspectives(tx: Transaction, namespace_id: int) -> list[tuple[str, str]]:
    return perspectives.wanted(tx, namespace_id, include_held=True)


def _plan_reflection(resources: Resources, job: JobContext, observer: str, subject: str) -> ReflectionPlan | None:
    """The plan of one reflection; ``None`` when the perspective has been erased since it was listed."""
    with resources.database.transaction() as tx:
        perspective = perspectives.find(tx, job.namespace_id, observer, subject)
        if perspective is None:
            return None
        held = perspective.held
    if held:
        proposed = review.from_plan(held)
    else:
        chosen = choose_new_facts(resources, perspective)
        proposed = propose(resources, job, chosen) if chosen else Proposal.nothing(perspective.reflected_through)
    with resources.database.transaction() as tx:
        said = {i: memory.content for i, memory in reflections.by_id(tx, proposed.changes.facts()).items()}
        changes, _ = review.without_changed(tx, proposed)
        pending = pending_changes(tx, perspective, changes, resources.model.model_for("reflect"))
        superseded = pending.to_be_superseded()
    return ReflectionPlan(
        observer=observer,
        subject=subject,
        facts=proposed.facts,
        held=held is not None,
        supersedes=tuple(sorted(superseded)),
        relations=tuple(_planned_relation(relation, said) for relation in pending.relations),
        insights=tuple(
            PlannedInsight(content=insight.content, support=tuple(insight.support), rationale=insight.rationale)
            for insight in pending.insights
        ),
    )


def _planned_relation(relation: Relation, said: Mapping[int, str]) -> PlannedRelation:
    return PlannedRelation(
        kind=relation.kind,
        new_id=relation.new_id,
        old_id=relation.old_id,
        holds=relation.holds,
        rationale=relation.rationale,
        new=said.get(relation.new_id, ""),
        old=said.get(relation.old_id, ""),
    )
