"""One reflection, from the new facts of a perspective to what is committed; and the reflections of a namespace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.cognition.reflect import review
from nexus_tasks.cognition.reflect.apply import COUNTED, application, wordings
from nexus_tasks.cognition.reflect.choose import PURPOSE, choose, note
from nexus_tasks.cognition.reflect.propose import Proposal, propose
from nexus_tasks.cognition.resources import GAVE_UP, JobContext, Resources
from nexus_tasks.storage import embeddings, open_questions, perspectives, reflections
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.types import JobOutcome, Status

# A run that would supersede more than this share of a perspective's facts, and more than this many, is held.
GUARD_SHARE, GUARD_COUNT = 0.30, 5
ARCHIVE_AFTER = timedelta(days=30)


def reflect_perspective(resources: Resources, job: JobContext, observer: str, subject: str) -> tuple[JobOutcome, bool]:
    """Reflect on up to a hundred new facts; the second value says whether more are waiting."""
    with resources.database.transaction() as tx:
        perspective = perspectives.find(tx, job.namespace_id, observer, subject)
        if perspective is None:
            return job.commit(tx, JobOutcome(status="empty")), False
        if perspective.held and not review.is_released(perspective.held):
            return job.commit(tx, JobOutcome(status="needs_review", details=review.figures(perspective.held))), False
        if perspective.dead:
            return job.commit(tx, GAVE_UP), False
    if perspective.held:
        return _apply(resources, job, perspective, review.proposal(perspective.held))
    chosen = choose(resources, perspective)
    if chosen is None:
        with resources.database.transaction() as tx:
            return job.commit(tx, JobOutcome(status="unchanged")), False
    note(resources, job, perspective, chosen)
    return _apply(resources, job, perspective, propose(resources, job, chosen))


def _apply(
    resources: Resources, job: JobContext, perspective: PerspectiveRow, proposal: Proposal
) -> tuple[JobOutcome, bool]:
    """Commit a proposal, unless another run was faster or it changes too much at once without having been released."""
    made_by = resources.model.model_for("reflect")
    changes = proposal.changes
    with resources.database.transaction() as tx:
        said = {i: memory.content for i, memory in reflections.by_id(tx, changes.facts()).items()}
    # A plan that waited for its release may name facts that were erased meanwhile.
    changes = review.without_erased(changes, said)
    texts = wordings(changes, said)
    vectors = vectors_of(resources.embedder, texts)
    with resources.database.transaction() as tx:
        locked = perspectives.lock(tx, job.namespace_id, perspective.observer, [perspective.subject])
        held = locked[perspective.subject]
        if held.reflected_through != perspective.reflected_through or held.held != perspective.held:
            return job.commit(tx, JobOutcome(status="superseded")), False
        open_questions.close(tx, job.namespace_id, PURPOSE, held.id)
        doing = application(tx, held, changes, made_by)
        doomed = doing.doomed()
        too_much = len(doomed) > GUARD_COUNT and len(doomed) > GUARD_SHARE * reflections.count_active_facts(tx, held.id)
        if too_much and held.held is None:
            plan = review.plan(proposal, doomed, job.job_id)
            reflections.hold_for_review(tx, held.id, plan)
            return job.commit(tx, JobOutcome(status="needs_review", details=review.figures(plan))), False
        if held.held is not None:
            reflections.hold_for_review(tx, held.id, None)
        perspectives.advance(tx, held.id, seen=perspective.reflected_through, through=proposal.through)
        reflection_id = doing.run(job.job_id)
        embeddings.store(tx, job.namespace_id, resources.embedder.name, doing.made, vectors)
        tx.flush()
        more = perspectives.count_unreflected(tx, [held.id])[held.id] > 0
        details: dict[str, Any] = {
            "facts": proposal.facts,
            **{name: doing.counts[name] for name in COUNTED},
            "rejected": changes.rejected,
            "model": made_by,
            **({"reflection": reflection_id} if reflection_id else {}),
        }
        return job.commit(tx, JobOutcome(status="completed", details=details)), more


def reflect_namespace(resources: Resources, job: JobContext) -> tuple[JobOutcome, list[tuple[str, str]]]:
    """Archive old messages; returns the perspectives (observer, subject) that have something to reflect on."""
    with resources.database.transaction() as tx:
        ripe = perspectives.wanted(tx, at_least=1, namespace_id=job.namespace_id)
        archived = reflections.archive_messages(tx, job.namespace_id, datetime.now(UTC) - ARCHIVE_AFTER)
        details = {"perspectives": len(ripe), "archived": archived}
        status: Status = "completed" if ripe or archived else "unchanged"
        outcome = job.commit(tx, JobOutcome(status=status, details=details))
        return outcome, [(observer, subject) for _, _, observer, subject in ripe]
