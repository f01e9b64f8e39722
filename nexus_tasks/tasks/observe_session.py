"""observe_session: the job that writes notes on a long session's messages, before a reader needs the notes."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from nexus_tasks.cognition.observing import observe
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import URGENT, Flags, Request
from nexus_tasks.storage import observations
from nexus_tasks.storage.newest import newest
from nexus_tasks.tasks import follow_ups, reflect_observations
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome

Reason = Literal["ingest", "blocked"]


class ObserveSession(Arguments):
    """The session to observe, and why: ``ingest`` when enough messages were stored, ``blocked`` when a reader waits.

    When a reader waits, the job takes larger batches, and writes no notes on the newest ``observation_buffer_tokens``
    tokens. When this setting is 0, sessions are observed only when a reader waits.
    """

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "ingest"

    def flags(self) -> Flags:
        """The flags of this request. ``force`` is set when a reader waits, and stays set when requests are merged.

        When a reader waits, the job also goes ahead of other jobs.
        """
        urgent = self.reason == "blocked"
        return Flags(force=urgent, reasons=(self.reason,), urgency=URGENT if urgent else "live")


_OUTBOX = of_rows(
    ObserveSession,
    partial(observations.wanted, work="observing"),
    mark=partial(observations.mark, work="observing"),
    drop=partial(observations.drop, work="observing"),
    newest=newest("observation_logs", "observing = 'wanted'"),
)


@job(arguments=ObserveSession, queue="capture", outbox=_OUTBOX, probe=probe_model("observe", "condense"))
@in_namespace
def observe_session(work: NamespaceRun, arguments: ObserveSession) -> JobOutcome:
    """Write notes on the new messages of a session, batch after batch."""
    urgent = work.run.flags.force
    done = observe.observe(work.resources, work.context(), arguments.session_key, urgent=urgent)
    name, key = work.namespace.name, arguments.session_key
    due = [request(name, key, "blocked" if urgent else "ingest")] if done.more else []
    due += [reflect_observations.request(name, key)] if done.condense else []
    if due:
        follow_ups.ask(work.deployment, due)
    return done.outcome


def request(namespace: str, session_key: str, reason: Reason = "ingest") -> Request:
    """The request to observe a session."""
    return observe_session.request_for(ObserveSession(namespace=namespace, session_key=session_key, reason=reason))
