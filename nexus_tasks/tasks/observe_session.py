"""observe_session: the job that writes notes in place of a long session's old messages, before a reader needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from nexus_tasks.cognition.observing import observe
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.storage import observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome

Reason = Literal["ingest", "blocked"]


class ObserveSession(Arguments):
    """The session to observe. With reason ``blocked`` a reader waits for the notes.

    The job then takes larger batches, also when ``observation_buffer_tokens`` is 0 and nothing is observed ahead of
    time. The newest ``observation_buffer_tokens`` tokens stay word for word.
    """

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name
    reason: Reason = "ingest"

    def flags(self) -> Flags:
        """Requests for one session merge. An earlier request from ingest does not swallow a reader's request."""
        return Flags(force=self.reason == "blocked", reasons=(self.reason,), urgency="live")


def _wanted(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> Sequence[tuple[int, Request]]:
    rows = observations.wanted(tx, after, limit, "observing")
    return [(cursor, request(namespace, key)) for cursor, namespace, key in rows]


def _mark(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
    observations.mark(tx, namespace_id, args["session_key"], "observing", dead=dead)


@job(arguments=ObserveSession, queue="capture", outbox=Outbox(page=_wanted, mark=_mark), probe=probe_model)
@in_namespace
def observe_session(work: NamespaceRun, arguments: ObserveSession) -> JobOutcome:
    """Observe what is new in a session, batch after batch."""
    urgent = work.run.flags.force
    outcome, more = observe.observe(work.resources, work.context(), arguments.session_key, urgent=urgent)
    if more:
        follow_ups.ask(work.deployment, [request(work.namespace.name, arguments.session_key)])
    return outcome


def request(namespace: str, session_key: str, reason: Reason = "ingest") -> Request:
    """The request to observe a session."""
    return observe_session.request_for(ObserveSession(namespace=namespace, session_key=session_key, reason=reason))
