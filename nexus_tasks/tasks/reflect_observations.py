"""reflect_observations: the job that condenses a session's observation log before a reader needs a shorter log."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from nexus_tasks.cognition.observing import condense
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import URGENT, Flags, Request
from nexus_tasks.storage import observations
from nexus_tasks.storage.newest import newest
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome

Reason = Literal["log", "blocked"]


class ReflectObservations(Arguments):
    """The session whose log is condensed, and why: ``log`` when it is long, ``blocked`` when a reader waits."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "log"

    def flags(self) -> Flags:
        """The flags of this request. When a reader waits, the job goes ahead of other jobs."""
        return Flags(reasons=(self.reason,), urgency=URGENT if self.reason == "blocked" else "live")


_OUTBOX = of_rows(
    ReflectObservations,
    partial(observations.wanted, work="reflecting"),
    mark=partial(observations.mark, work="reflecting"),
    drop=partial(observations.drop, work="reflecting"),
    newest=newest("observation_logs", "reflecting = 'wanted'"),
)


@job(arguments=ReflectObservations, queue="capture", outbox=_OUTBOX, probe=probe_model("condense"))
@in_namespace
def reflect_observations(work: NamespaceRun, arguments: ReflectObservations) -> JobOutcome:
    """Condense the observation log of a session."""
    outcome, more = condense.condense(work.resources, work.context(), arguments.session_key)
    if more:
        reason: Reason = "blocked" if work.run.flags.urgency == URGENT else "log"
        follow_ups.ask(work.deployment, [request(work.namespace.name, arguments.session_key, reason)])
    return outcome


def request(namespace: str, session_key: str, reason: Reason = "log") -> Request:
    """The request to condense a session's log."""
    asked = ReflectObservations(namespace=namespace, session_key=session_key, reason=reason)
    return reflect_observations.request_for(asked)
