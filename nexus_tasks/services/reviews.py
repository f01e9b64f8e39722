"""Release, discard or describe the plan of a reflection that is held for review.

A reflection that would change too much at once is stored as a plan, until a person reviews the plan. `nexus status`
shows the held plans. `nexus jobs retry` releases a plan, and `nexus jobs drop` discards a plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nexus_tasks.storage import job_runs, namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import PerspectiveRow
from nexus_tasks.types import HeldReflection


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The job kind and arguments of a held reflection that was released or discarded."""

    kind: str
    args: Mapping[str, Any]


def settle(tx: Transaction, job_id: str, *, drop: bool) -> Settled | None:
    """Release or discard a reflection's plan that is held for review.

    Args:
        job_id: the id of the job that made the plan, or of a later job for the same perspective (the memories of one
            observer about one subject). While the plan is held, a later job does nothing, and also ends with the status
            ``needs_review``. So a person may know the plan by the id of this job.
        drop: ``True`` discards the plan, ``False`` releases the plan.

    Returns:
        The kind and arguments of the job, or ``None`` when no plan is held for review.

    Raises:
        NamespaceMoving: the namespace is moving to another cell.
    """
    found = job_runs.find(tx, job_id)
    if found is None or found[0].status != "needs_review":
        return None
    run, _ = found
    if run.namespace_id is None:  # the job's namespace does not exist
        return None
    namespaces.refuse_leaving(tx, run.namespace_id)
    scope = json.loads(run.scope)
    from nexus_tasks.cognition import reflect

    if not reflect.release(tx, run.namespace_id, scope["observer"], scope["subject"], drop=drop):
        return None
    if drop:
        job_runs.mark_reviews_dropped(tx, run.namespace_id, run.kind, run.scope)
    return Settled(kind=run.kind, args=scope)


def held_reflection(row: PerspectiveRow) -> HeldReflection:
    """Describe the plan that is held for review in the row of a perspective."""
    plan = row.held or {}
    return HeldReflection(
        job_id=plan["job_id"],
        observer=row.observer,
        subject=row.subject,
        facts=plan["facts"],
        supersedes=len(plan["supersedes"]),
        since=plan["held_at"],
        released=bool(plan.get("released")),
    )
