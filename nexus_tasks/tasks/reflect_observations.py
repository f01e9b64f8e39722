"""reflect_observations: a shorter observation log, made before it is needed."""

from __future__ import annotations

from typing import ClassVar

from nexus_tasks.cognition.observing import condense
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class ReflectObservations(Arguments):
    """One session's log."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name


@job(arguments=ReflectObservations, queue="capture")
def reflect_observations(run: Run, arguments: ReflectObservations) -> JobOutcome:
    """Condense the observation log of a session."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    return condense.condense(here.resources, job_context(run, namespace), arguments.session_key)


def request(namespace: str, session_key: str) -> Request:
    """The request to condense a session's log."""
    return reflect_observations.request_for(ReflectObservations(namespace=namespace, session_key=session_key))
