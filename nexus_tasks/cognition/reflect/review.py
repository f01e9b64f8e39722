"""Reflections that change too much at once: held with their plan until a person releases or drops it. And dry runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nexus_tasks.cognition.reflect.apply import application
from nexus_tasks.cognition.reflect.choose import choose
from nexus_tasks.cognition.reflect.propose import Changes, Proposal, propose
from nexus_tasks.cognition.resources import JobContext, Resources
from nexus_tasks.llm.answers import Insight, Relation
from nexus_tasks.storage import dreams, perspectives, reflections
from nexus_tasks.storage.engine import Transaction

Plan = dict[str, Any]


def plan(proposal: Proposal, doomed: set[int], job_id: str) -> Plan:
    """A proposal as it is held: what :func:`proposal` reads back, and which facts it would supersede."""
    return {
        "job_id": job_id,
        "held_at": datetime.now(UTC).isoformat(),
        "facts": proposal.facts,
        "through": proposal.through,
        "supersedes": sorted(doomed),
        "relations": [relation.model_dump() for relation in proposal.changes.relations],
        "insights": [insight.model_dump() for insight in proposal.changes.insights],
        "rejected": proposal.changes.rejected,
    }


def proposal(held: Mapping[str, Any]) -> Proposal:
    """The proposal that a plan holds."""
    return Proposal(
        facts=held["facts"],
        through=held["through"],
        changes=Changes(
            relations=[Relation.model_validate(relation) for relation in held["relations"]],
            insights=[Insight.model_validate(insight) for insight in held["insights"]],
            rejected=held["rejected"],
        ),
    )


def figures(held: Mapping[str, Any]) -> dict[str, Any]:
    """A plan in figures and ids: what a run row may say, which outlives the facts."""
    return {
        "facts": held["facts"],
        "supersedes": held["supersedes"],
        "relations": len(held["relations"]),
        "insights": len(held["insights"]),
    }


def is_released(held: Mapping[str, Any]) -> bool:
    """Whether the plan may be carried out."""
    return bool(held.get("released"))


def release(tx: Transaction, namespace_id: int, observer: str, subject: str, *, drop: bool) -> bool:
    """Let a held plan be carried out by the next run, or (``drop``) discard it; ``False`` when nothing is held.

    A dropped plan's facts count as reflected on: else the next run would propose the same again.
    """
    held = perspectives.lock(tx, namespace_id, observer, [subject]).get(subject)
    if held is None or held.held is None:
        return False
    if drop:
        perspectives.advance(tx, held.id, seen=held.reflected_through, through=held.held["through"])
        reflections.hold_for_review(tx, held.id, None)
    else:
        reflections.hold_for_review(tx, held.id, {**held.held, "released": True})
    return True


def without_erased(changes: Changes, said: Mapping[int, str]) -> Changes:
    """The changes without those about facts that are gone."""
    return Changes(
        relations=[r for r in changes.relations if r.new_id in said and r.old_id in said],
        insights=[insight for insight in changes.insights if said.keys() >= set(insight.support)],
        rejected=changes.rejected,
    )


def plans(resources: Resources, job: JobContext) -> dict[str, Any]:
    """What a dream of the namespace would do now: the sessions it would digest, and the plan of each reflection.

    The model is asked as the dream would ask it; its answers are kept, and the dream uses them. Only the next hundred
    new facts of a perspective are planned. Nothing else changes.
    """
    with resources.database.transaction() as tx:
        sessions = [due.session_key for due in dreams.due_sessions(tx, job.namespace_id)]
        due = [(observer, subject) for _, _, observer, subject in _ripe(tx, job.namespace_id)]
    return {
        "namespace": job.namespace,
        "sessions": sessions,
        "reflections": [_planned(resources, job, observer, subject) for observer, subject in due],
    }


def _ripe(tx: Transaction, namespace_id: int) -> list[tuple[int, str, str, str]]:
    return perspectives.wanted(tx, at_least=1, namespace_id=namespace_id, include_held=True)


def _planned(resources: Resources, job: JobContext, observer: str, subject: str) -> dict[str, Any]:
    with resources.database.transaction() as tx:
        perspective = perspectives.find(tx, job.namespace_id, observer, subject)
        assert perspective is not None
        held = perspective.held
    if held:
        proposed = proposal(held)
    else:
        chosen = choose(resources, perspective)
        proposed = propose(resources, job, chosen) if chosen else Proposal.nothing(perspective.reflected_through)
    with resources.database.transaction() as tx:
        said = {i: memory.content for i, memory in reflections.by_id(tx, proposed.changes.facts()).items()}
        doing = application(tx, perspective, proposed.changes, resources.model.model_for("reflect"))
        doomed = doing.doomed()
    return {
        "observer": observer,
        "subject": subject,
        "facts": proposed.facts,
        "held": held is not None,
        "supersedes": sorted(doomed),
        "relations": [
            {
                **relation.model_dump(),
                "new": said.get(relation.new_id, ""),
                "old": said.get(relation.old_id, ""),
            }
            for relation in doing.relations
        ],
        "insights": [insight.model_dump() for insight in doing.insights],
    }
