"""The jobs reflect_perspective (reflect on a perspective's new facts) and reflect_namespace (archive old messages).

A perspective is the set of memories of one observer about one subject.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.job_context import GAVE_UP, JobContext
from nexus_tasks.cognition.reflect import review
from nexus_tasks.cognition.reflect.apply import COUNTED, pending_changes, texts_to_embed
from nexus_tasks.cognition.reflect.new_facts import PURPOSE, choose_new_facts, save_question
from nexus_tasks.cognition.reflect.propose import Proposal, propose
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.storage import embeddings, open_questions, perspectives, reflections
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.types import JobOutcome, Status

# The changes of a run may supersede at most 5 facts, or at most 30 % of the perspective's active facts if that is more.
# Otherwise a person must review the changes first. Chosen by hand, not measured.
GUARD_SHARE, GUARD_COUNT = 0.30, 5
# A message that was stored this long ago is marked as archived, if its facts were derived and a digest covers it.
# Chosen by hand, not measured.
ARCHIVE_AFTER = timedelta(days=30)


def reflect_perspective(resources: Resources, job: JobContext, observer: str, subject: str) -> tuple[JobOutcome, bool]:
    """Reflect on up to a hundred new facts. Return the outcome, and whether the perspective has more new facts."""
    with resources.database.transaction() as tx:
        perspective = perspectives.find(tx, job.namespace_id, observer, subject)
        if perspective is None:
            return job.commit(tx, JobOutcome(status="empty")), False
        if perspective.held and not review.is_released(perspective.held):
            return job.commit(tx, JobOutcome(status="needs_review", details=review.summary_of(perspective.held))), False
        if perspective.dead:
            return job.commit(tx, GAVE_UP), False
    if perspective.held:
        return _apply(resources, job, perspective, review.from_plan(perspective.held))
    chosen = choose_new_facts(resources, perspective)
    if chosen is None:
        with resources.database.transaction() as tx:
            if perspective.again:  # all of these facts have been erased
                locked = perspectives.lock(tx, job.namespace_id, observer, [subject])
                if _version(locked[subject]) == _version(perspective):
                    perspectives.judge_again(tx, perspective.id, ())
            return job.commit(tx, JobOutcome(status="unchanged")), False
    save_question(resources, job, perspective, chosen)
    return _apply(resources, job, perspective, propose(resources, job, chosen))


def _apply(
    resources: Resources, job: JobContext, perspective: PerspectiveRow, proposal: Proposal
) -> tuple[JobOutcome, bool]:
    """Commit a proposal, unless another run has changed the perspective since the caller read it.

    A proposal that would change too much is stored until a person reviews it. The stored form is called a plan.
    """
    made_by = resources.model.model_for("reflect")
    changes = proposal.changes
    with resources.database.transaction() as tx:
        said = {i: memory.content for i, memory in reflections.by_id(tx, changes.facts()).items()}
    # Some facts of the proposal may have been erased, for example while its plan waited for a person's review.
    changes = review.without_erased(changes, said)
    texts = texts_to_embed(changes, said)
    vectors = vectors_of(resources.embedder, texts)
    with resources.database.transaction() as tx:
        locked = perspectives.lock(tx, job.namespace_id, perspective.observer, [perspective.subject])
        current = locked[perspective.subject]
        if _version(current) != _version(perspective):
            return job.commit(tx, JobOutcome(status="superseded")), False
        # No transaction can change the facts of a locked perspective, so this comparison holds until the commit.
        kept, again = review.without_changed(tx, proposal)
        changes = review.without_erased(kept, said)
        open_questions.close(tx, job.namespace_id, PURPOSE, current.id)
        pending = pending_changes(tx, current, changes, made_by)
        superseded = pending.to_be_superseded()
        too_much = len(superseded) > GUARD_COUNT and len(superseded) > GUARD_SHARE * reflections.count_active_facts(
            tx, current.id
        )
        if too_much and current.held is None:
            # A fact that has changed stays to be judged again when the plan is carried out or dropped.
            proposal = replace(proposal, changes=changes, again=proposal.again - again)
            perspectives.judge_again(tx, current.id, [*current.again, *again])
            plan = review.to_plan(proposal, superseded, job.job_id)
            reflections.hold_for_review(tx, current.id, plan)
            return job.commit(tx, JobOutcome(status="needs_review", details=review.summary_of(plan))), False
        if current.held is not None:
            reflections.hold_for_review(tx, current.id, None)
        perspectives.advance(tx, current.id, seen=perspective.reflected_through, through=proposal.through)
        perspectives.judge_again(tx, current.id, (set(current.again) - proposal.again) | again)
        reflection_id = pending.write(job.job_id)
        embeddings.store(tx, job.namespace_id, resources.embedder.name, pending.made, vectors)
        tx.flush()
        more = perspectives.count_unreflected(tx, [current.id])[current.id] > 0
        details: dict[str, Any] = {
            "facts": proposal.facts,
            **{name: pending.counts[name] for name in COUNTED},
            "rejected": changes.rejected,
            **({"again": len(again)} if again else {}),
            "model": made_by,
            **({"reflection": reflection_id} if reflection_id else {}),
        }
        return job.commit(tx, JobOutcome(status="completed", details=details)), more


def _version(row: PerspectiveRow) -> tuple[Any, ...]:
    """What another run that reflects on the same facts changes."""
    return row.reflected_through, row.held, row.again


def reflect_namespace(resources: Resources, job: JobContext) -> tuple[JobOutcome, list[tuple[str, str]]]:
    """Archive old messages. Return the outcome, and the perspectives (observer, subject) with new facts."""
    with resources.database.transaction() as tx:
        ripe = perspectives.wanted(tx, job.namespace_id)
        archived = reflections.archive_messages(tx, job.namespace_id, ARCHIVE_AFTER)
        details = {"perspectives": len(ripe), "archived": archived}
        status: Status = "completed" if ripe or archived else "unchanged"
        outcome = job.commit(tx, JobOutcome(status=status, details=details))
        return outcome, ripe
