"""extract_session: topics and facts out of what a session has said since the last time."""

from __future__ import annotations

from typing import ClassVar

from nexus_tasks.cognition.extraction import extract
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class ExtractSession(Arguments):
    """The session; how far it is extracted is known to Postgres."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name

    def flags(self) -> Flags:
        """Requests for one session merge, and one that comes during a run becomes one rerun."""
        return Flags(force=False, reasons=("turn",), urgency="live")


@job(arguments=ExtractSession, queue="capture")
def extract_session(run: Run, arguments: ExtractSession) -> JobOutcome:
    """Extract topics and facts, one session at a time."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    outcome, more = extract(here.resources, job_context(run, namespace), arguments.session_key, namespace.observers)
    if more:
        follow_ups.ask([request(namespace.name, arguments.session_key)])
    return outcome


def request(namespace: str, session_key: str) -> Request:
    """The request to extract from a session."""
    return extract_session.request_for(ExtractSession(namespace=namespace, session_key=session_key))


def ask(namespace: str, session_key: str) -> int:
    """Ask for an extraction, after the commit; returns how many jobs that made: 0 while Redis is away."""
    return len(follow_ups.ask([request(namespace, session_key)]))
