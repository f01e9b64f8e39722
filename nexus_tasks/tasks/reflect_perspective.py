"""reflect_perspective: the job that relates new facts about a subject to an observer's earlier facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import perspectives
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import read
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class ReflectPerspective(Arguments):
    """The holder of the memories (``observer``), and the person or thing they are about (``subject``)."""

    scope: ClassVar = ("namespace", "observer", "subject")
    namespace: NamespaceName
    observer: Name
    subject: Name


def _wanted(
    deployment: Deployment, tx: Transaction, after: int, limit: int
) -> list[tuple[int, ReflectPerspective | None]]:
    rows = perspectives.page(tx, after, limit, at_least=deployment.settings.reflect_min_new)
    return [
        (cursor, read(ReflectPerspective, namespace=namespace, observer=observer, subject=subject) if ready else None)
        for cursor, namespace, observer, subject, ready in rows
    ]


def _mark(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
    perspectives.mark(tx, namespace_id, args["observer"], args["subject"], dead=dead)


def _drop(tx: Transaction, namespace_id: int, args: Any) -> None:
    perspectives.drop(tx, namespace_id, args["observer"], args["subject"])


@job(
    arguments=ReflectPerspective,
    queue="reflect",
    outbox=Outbox(page=_wanted, mark=_mark, drop=_drop, newest=perspectives.newest_alive),
    probe=probe_model("reflect"),
    live_ends_wait="batch",
)
@in_namespace
def reflect_perspective(work: NamespaceRun, arguments: ReflectPerspective) -> JobOutcome:
    """Reflect on a perspective's new facts, at most 100 per run."""
    from nexus_tasks.cognition import reflect  # heavy, and a producer needs none of it

    observer, subject, namespace = arguments.observer, arguments.subject, work.namespace.name
    outcome, more = reflect.reflect_perspective(work.resources, work.context(), observer, subject)
    if more:
        again = request(namespace, observer, subject, urgency=work.run.flags.urgency)
        follow_ups.ask(work.deployment, [again])
    else:
        follow_ups.hurry_dream(work.deployment, work.namespace)
    return outcome


def request(namespace: str, observer: str, subject: str, *, urgency: str = "live", delay: float = 0.0) -> Request:
    """The request for one reflection, due in ``delay`` seconds."""
    arguments = ReflectPerspective(namespace=namespace, observer=observer, subject=subject)
    asked = reflect_perspective.request_for(arguments, delay=delay)
    return replace(asked, flags=replace(asked.flags, urgency=urgency))
