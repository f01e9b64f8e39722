"""Dreams: digest every due session of a namespace, then reflect. A chord carries it, the `dreams` row is the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celery import chord

from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.run import Run
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.storage import dreams, namespaces
from nexus_tasks.tasks import follow_up, reflect_namespace
from nexus_tasks.tasks.arguments import MemoryId, NamespaceName
from nexus_tasks.tasks.digest_session import digest_session
from nexus_tasks.tasks.errand import errand
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

SLICE = 200  # header tasks per chord


class FinishDream(Arguments):
    """One dream."""

    scope: ClassVar = ("namespace", "dream_id")
    namespace: NamespaceName
    dream_id: MemoryId

    def flags(self) -> Flags:
        """Tonight will do."""
        return Flags(urgency="dream")


@job(arguments=FinishDream, queue="digest")
def finish_dream(run: Run, arguments: FinishDream) -> JobOutcome:
    """Close a dream whose digests have all been made, and start its reflections; before that, do nothing."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    with here.database.transaction() as tx:
        dream = dreams.get(tx, namespace.id, arguments.dream_id, lock=True)
        if dream is None:
            outcome = JobOutcome(status="gone")
        elif dream.state == "finished":
            outcome = JobOutcome(status="unchanged")
        elif waiting := dreams.unfinished(tx, dream):
            outcome = JobOutcome(status="skipped", details={"digests_to_come": waiting})
        else:
            dreams.finish(tx, dream.id)
            outcome = JobOutcome(status="completed", details={"sessions": len(dream.sessions)})
        errand(run, namespace).commit(tx, outcome)
    if outcome.status == "completed":
        follow_up.ask([reflect_namespace.request(namespace.name, urgency="dream")])
    return outcome


@dataclass(frozen=True, kw_only=True)
class Started:
    """A dream that was opened, or (``dream_id`` is ``None``) was not, because another one is open."""

    dream_id: int | None
    sessions: tuple[str, ...]


def start(namespace: str, *, urgency: str = "dream") -> Started:
    """Open a dream over the namespace's due sessions.

    Raises:
        NotFound: there is no such namespace.
    """
    with runtime().database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        due = dreams.due_sessions(tx, known.id)
        dream_id = dreams.start(tx, known.id, due, urgency=urgency)
    started = Started(dream_id=dream_id, sessions=tuple(one.session_key for one in due))
    if dream_id is None:
        return started
    if not due:
        follow_up.ask([request(namespace, dream_id)])
    # One chord per slice: each body looks at the whole dream, and the one that comes last closes it.
    for first in range(0, len(due), SLICE):
        keys = started.sessions[first : first + SLICE]
        header = [digest_session.si(namespace=namespace, session_key=key, reason="dream_digest") for key in keys]
        chord(header, finish_dream.si(namespace=namespace, dream_id=dream_id)).apply_async()
    return started


def request(namespace: str, dream_id: int) -> Request:
    """The request to finish a dream."""
    return finish_dream.request_for(FinishDream(namespace=namespace, dream_id=dream_id))
