"""reflect_namespace: a reflection for every perspective that has something new, then the archive."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from nexus_tasks.cognition import reflect
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks import follow_ups, reflect_perspective
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class ReflectNamespace(Arguments):
    """The whole namespace."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


@job(arguments=ReflectNamespace, queue="reflect")
def reflect_namespace(run: Run, arguments: ReflectNamespace) -> JobOutcome:
    """Start the reflections that a namespace is due."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    outcome, due = reflect.reflect_namespace(here.resources, job_context(run, namespace))
    urgency = run.flags.urgency or "live"
    follow_ups.ask([reflect_perspective.request(namespace.name, *perspective, urgency=urgency) for perspective in due])
    follow_ups.dream_goes_on(namespace)
    return outcome


def request(namespace: str, *, urgency: str) -> Request:
    """The request for a namespace's reflections."""
    asked = reflect_namespace.request_for(ReflectNamespace(namespace=namespace))
    return replace(asked, flags=replace(asked.flags, urgency=urgency))
