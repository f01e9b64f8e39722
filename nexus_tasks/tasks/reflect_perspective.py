"""reflect_perspective: how new facts about a subject relate to what an observer knew."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from nexus_tasks.cognition import reflect
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class ReflectPerspective(Arguments):
    """Who holds the memories, about whom."""

    scope: ClassVar = ("namespace", "observer", "subject")
    namespace: NamespaceName
    observer: Name
    subject: Name


@job(arguments=ReflectPerspective, queue="reflect")
def reflect_perspective(run: Run, arguments: ReflectPerspective) -> JobOutcome:
    """Reflect on a perspective's new facts, a hundred per run."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    outcome, more = reflect.reflect_perspective(
        here.resources, job_context(run, namespace), arguments.observer, arguments.subject
    )
    if more:
        follow_ups.ask([request(namespace.name, arguments.observer, arguments.subject, urgency=run.flags.urgency)])
    else:
        follow_ups.dream_goes_on(namespace)
    return outcome


def request(namespace: str, observer: str, subject: str, *, urgency: str = "live", delay: float = 0.0) -> Request:
    """The request for one reflection, due in ``delay`` seconds."""
    arguments = ReflectPerspective(namespace=namespace, observer=observer, subject=subject)
    asked = reflect_perspective.request_for(arguments, delay=delay)
    return replace(asked, flags=replace(asked.flags, urgency=urgency))
