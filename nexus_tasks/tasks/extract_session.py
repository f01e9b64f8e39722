"""extract_session: the job that writes topics and facts from a session's messages since its last extraction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from nexus_tasks.cognition.extraction import extract
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.storage import extractions, namespaces, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class ExtractSession(Arguments):
    """The session to extract from. Postgres stores the position up to which the session is extracted."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name

    def flags(self) -> Flags:
        """The flags of this request. All requests that arrive during a run lead to one further run (a rerun)."""
        return Flags(force=False, reasons=("turn",), urgency="live")


def _want(tx: Transaction, asked: Sequence[ExtractSession]) -> None:
    for one in asked:
        session = sessions.find(tx, namespaces.get(tx, one.namespace).id, one.session_key)
        if session:
            extractions.want(tx, session)


@job(
    arguments=ExtractSession,
    queue="capture",
    outbox=of_rows(
        ExtractSession,
        extractions.wanted,
        mark=extractions.mark,
        drop=extractions.drop,
        newest=extractions.newest_wanted,
        want=_want,
    ),
    probe=probe_model("topics", "facts"),
)
@in_namespace
def extract_session(work: NamespaceRun, arguments: ExtractSession) -> JobOutcome:
    """Extract topics and facts from a session."""
    namespace = work.namespace
    outcome, more = extract(work.resources, work.context(), arguments.session_key, namespace.observers)
    if more:
        follow_ups.ask(work.deployment, [request(namespace.name, arguments.session_key)])
    return outcome


def request(namespace: str, session_key: str) -> Request:
    """The request to extract from a session."""
    return extract_session.request_for(ExtractSession(namespace=namespace, session_key=session_key))
