"""Start a dream, plan a dream, and undo a reflection.

A dream is the consolidation of a namespace: it digests every due session, then reflects on new facts.
"""

from __future__ import annotations

from nexus_tasks.cognition import reflect
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.storage import namespaces
from nexus_tasks.tasks import derive_memory, digest_session, finish_dream, follow_ups
from nexus_tasks.tasks.handler import dry_context
from nexus_tasks.types import DreamPlan, UndoReceipt, check_name, check_namespace


def dream(deployment: Deployment, namespace: str) -> JobResult:
    """See :meth:`nexus_tasks.client.Nexus.dream`."""
    started = finish_dream.start(deployment, check_namespace(namespace), urgency="live", reason="manual")
    request = finish_dream.request(namespace, started.dream_id)
    result = task_of(deployment.engine, request.kind).existing_result(request)
    result.created = started.opened
    return result


def plan(deployment: Deployment, namespace: str) -> DreamPlan:
    """See :meth:`nexus_tasks.client.Nexus.dream_plans`."""
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
    return reflect.plan_dream(deployment.resources, dry_context(deployment, known))


def undo(deployment: Deployment, namespace: str, reflection: int | str) -> UndoReceipt:
    """See :meth:`nexus_tasks.client.Nexus.undo`."""
    if isinstance(reflection, str):
        reflection = check_name("reflection", reflection)
    elif not 1 <= reflection < 2**63:
        raise InvalidInput(f"reflection must be a reflection's number, not {reflection!r}.")
    check_namespace(namespace)
    receipt, again = deployment.database.commit(
        lambda tx: reflect.undo(tx, namespaces.get(tx, namespace).id, reflection)
    )
    # The messages were derived before, so only a renewed request starts a run.
    wanted = [request.renewed() for request in derive_memory.requests(namespace, again.derivations)]
    wanted += [digest_session.request(namespace, key, "manual_rebuild") for key in again.digests]
    if wanted:
        follow_ups.ask(deployment, wanted)
    return receipt
