"""reflect_observations: the job that condenses a session's observation log before a reader needs a shorter log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nexus_tasks.cognition.observing import condense
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import observations
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks.arguments import Name, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class ReflectObservations(Arguments):
    """The session whose log is condensed."""

    scope: ClassVar = ("namespace", "session_key")
    namespace: NamespaceName
    session_key: Name


def _wanted(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> Sequence[tuple[int, Request]]:
    rows = observations.wanted(tx, after, limit, "reflecting")
    return [(cursor, request(namespace, key)) for cursor, namespace, key in rows]


def _mark(tx: Transaction, namespace_id: int, args: Any, *, dead: bool) -> None:
    observations.mark(tx, namespace_id, args["session_key"], "reflecting", dead=dead)


@job(arguments=ReflectObservations, queue="capture", outbox=Outbox(page=_wanted, mark=_mark), probe=probe_model)
@in_namespace
def reflect_observations(work: NamespaceRun, arguments: ReflectObservations) -> JobOutcome:
    """Condense the observation log of a session."""
    return condense.condense(work.resources, work.context(), arguments.session_key)


def request(namespace: str, session_key: str) -> Request:
    """The request to condense a session's log."""
    return reflect_observations.request_for(ReflectObservations(namespace=namespace, session_key=session_key))
