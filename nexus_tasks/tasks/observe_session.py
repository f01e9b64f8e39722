"""observe_session: notes in place of a long conversation's old messages, made before they are needed."""

from __future__ import annotations

from typing import ClassVar, Literal

from nexus_tasks.cognition.observing import observe
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

Reason = Literal["ingest", "blocked"]


class ObserveSession(Arguments):
    """``blocked``: a reader waits; then less than a whole interval is observed too, in larger batches."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "ingest"

    def flags(self) -> Flags:
        """Requests for one session merge: a reader's is never swallowed by one that came first."""
        return Flags(force=self.reason == "blocked", reasons=(self.reason,), urgency="live")


@job(arguments=ObserveSession, queue="capture")
def observe_session(run: Run, arguments: ObserveSession) -> JobOutcome:
    """Observe what is new in a session, batch after batch."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    outcome, more = observe.observe(
        here.resources, job_context(run, namespace), arguments.session_key, urgent=run.flags.force
    )
    if more:
        follow_ups.ask([request(namespace.name, arguments.session_key)])
    return outcome


def request(namespace: str, session_key: str, reason: Reason = "ingest") -> Request:
    """The request to observe a session."""
    return observe_session.request_for(ObserveSession(namespace=namespace, session_key=session_key, reason=reason))
