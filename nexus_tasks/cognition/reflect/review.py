"""Store a reflection that would change too much as a plan, until a person releases or drops the plan.

Such a stored plan is called a held plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nexus_tasks.cognition.reflect.new_facts import FactState, state_of
from nexus_tasks.cognition.reflect.propose import Changes, Proposal
from nexus_tasks.llm.answers import Insight, Relation
from nexus_tasks.storage import perspectives, reflections
from nexus_tasks.storage.engine import Transaction

HeldPlan = dict[str, Any]  # the JSON in the column ``held`` of the perspective's row


def to_plan(proposal: Proposal, superseded: set[int], job_id: str) -> HeldPlan:
    """Convert a proposal to a plan. ``superseded`` has the ids of the facts that the proposal would supersede."""
    named = set(proposal.changes.facts())
    return {
        "job_id": job_id,
        "held_at": datetime.now(UTC).isoformat(),
        "facts": proposal.facts,
        "through": proposal.through,
        "supersedes": sorted(superseded),
        "relations": [relation.model_dump() for relation in proposal.changes.relations],
        "insights": [insight.model_dump() for insight in proposal.changes.insights],
        "rejected": proposal.changes.rejected,
        "again": sorted(proposal.again),
        # A hash in place of the wording: the plan is to contain no more text than it needs.
        "seen": {i: (_hash(state.content), *state[1:]) for i, state in proposal.seen.items() if i in named},
    }


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def from_plan(held: Mapping[str, Any]) -> Proposal:
    """Convert a held plan back to its proposal."""
    return Proposal(
        facts=held["facts"],
        through=held["through"],
        changes=Changes(
            relations=[Relation.model_validate(relation) for relation in held["relations"]],
            insights=[Insight.model_validate(insight) for insight in held["insights"]],
            rejected=held["rejected"],
        ),
        again=frozenset(held.get("again", ())),
        seen={int(i): FactState(*state) for i, state in held.get("seen", {}).items()},
    )


def summary_of(held: Mapping[str, Any]) -> dict[str, Any]:
    """The counts and ids of a plan, for a run row. Fact texts are left out, because the row stays after an erasure."""
    return {
        "facts": held["facts"],
        "supersedes": held["supersedes"],
        "relations": len(held["relations"]),
        "insights": len(held["insights"]),
    }


def is_released(held: Mapping[str, Any]) -> bool:
    """Whether a person has released the plan."""
    return bool(held.get("released"))


def release(tx: Transaction, namespace_id: int, observer: str, subject: str, *, drop: bool) -> bool:
    """Let the next run carry out a held plan. Return ``False`` when no plan is held.

    Args:
        drop: discard the plan instead of releasing it. The plan's new facts count as reflected on, so no run proposes
            the same plan again.
    """
    row = perspectives.lock(tx, namespace_id, observer, [subject]).get(subject)
    if row is None or row.held is None:
        return False
    if drop:
        perspectives.advance(tx, row.id, seen=row.reflected_through, through=row.held["through"])
        perspectives.judge_again(tx, row.id, [i for i in row.again if i not in row.held.get("again", ())])
        reflections.hold_for_review(tx, row.id, None)
    else:
        reflections.hold_for_review(tx, row.id, {**row.held, "released": True})
    return True


def without_changed(tx: Transaction, proposal: Proposal) -> tuple[Changes, set[int]]:
    """Leave out the changes that rest on a fact which is no longer as the model was shown it.

    A fact has changed when it was reworded, or said again since, or when one of its sources was erased. The answer of a
    message batch comes up to a day after the question, and a held plan may wait for longer.

    Returns:
        The other changes, and the ids of the facts to judge again.
    """
    ids = proposal.changes.facts()
    found, said = reflections.by_id(tx, ids), reflections.last_said(tx, ids)
    now = {i: state_of(memory.content, said.get(i)) for i, memory in found.items()}

    def same(i: int) -> bool:
        # An erased fact is left out elsewhere. A plan of the release before does not know how its facts were.
        return i not in now or i not in proposal.seen or proposal.seen[i] in (now[i], _hashed(now[i]))

    changed = {i for i in ids if not same(i)}
    if not changed:
        return proposal.changes, changed
    relations, insights = proposal.changes.relations, proposal.changes.insights
    kept = Changes(
        relations=[r for r in relations if not changed & {r.new_id, r.old_id}],
        insights=[insight for insight in insights if not changed & set(insight.support)],
        rejected=proposal.changes.rejected,
    )
    again = {r.new_id for r in relations if changed & {r.new_id, r.old_id}}
    again |= {i for insight in insights for i in changed & set(insight.support)}
    return kept, {i for i in again if i in found}


def _hashed(state: FactState) -> FactState:
    return state._replace(content=_hash(state.content))


def without_erased(changes: Changes, said: Mapping[int, str]) -> Changes:
    """The changes without the changes about erased facts. ``said`` has the wording of each fact that still exists."""
    return Changes(
        relations=[r for r in changes.relations if r.new_id in said and r.old_id in said],
        insights=[insight for insight in changes.insights if said.keys() >= set(insight.support)],
        rejected=changes.rejected,
    )
