"""Dreams: digest every due session of a namespace, then reflect. A chord carries it, the `dreams` row is the truth."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from celery import chord
from kombu.exceptions import OperationalError

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.storage import dreams, namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import digest_session, follow_ups, reflect_namespace, reflect_perspective
from nexus_tasks.tasks.arguments import MemoryId, NamespaceName
from nexus_tasks.tasks.digest_session import Urgency
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

SLICE = 200  # header tasks per chord
REASON = "dream"  # why a dream waits: see `follow_up.dream_goes_on`
LOOK_AGAIN = 15.0  # seconds


class FinishDream(Arguments):
    """One dream."""

    scope: ClassVar = ("namespace", "dream_id")
    namespace: NamespaceName
    dream_id: MemoryId

    def flags(self) -> Flags:
        """Tonight will do: closing a dream calls no model."""
        return Flags(urgency="dream")


@job(arguments=FinishDream, queue="digest")
def finish_dream(run: Run, arguments: FinishDream) -> JobOutcome:
    """See a dream to its end: its digests, then its reflections. What gave up does not hold it back."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    with here.database.transaction() as tx:
        dream = dreams.get(tx, namespace.id, arguments.dream_id, lock=True)
        if dream is None:
            return job_context(run, namespace).commit(tx, JobOutcome(status="gone"))
        if dream.state == "finished":
            return job_context(run, namespace).commit(tx, JobOutcome(status="unchanged"))
        if to_come := dreams.digests_to_come(tx, dream):
            raise Wait(REASON, LOOK_AGAIN, f"digests to come: {to_come} of {len(dream.sessions)}")
        if not dreams.has_reflected(tx, dream):
            _insist([reflect_namespace.request(namespace.name, urgency=dream.urgency)])
            raise Wait(REASON, LOOK_AGAIN, "reflections to come")
        if perspectives := dreams.reflections_to_come(tx, dream):
            _insist([reflect_perspective.request(namespace.name, *one) for one in perspectives])
            raise Wait(REASON, LOOK_AGAIN, f"reflections to come: {len(perspectives)}")
        dreams.finish(tx, dream.id)
        details = {"dream": dream.id, "sessions": len(dream.sessions)}
        return job_context(run, namespace).commit(tx, JobOutcome(status="completed", details=details))


def _insist(requests: Sequence[Request]) -> None:
    """Ask for what should be under way already: no flag is set, and what runs is not run again."""
    follow_ups.ask([replace(one, anew=True) for one in requests])


@dataclass(frozen=True, kw_only=True)
class Started:
    """The namespace's open dream; ``opened`` is false when it was open already, and ``sessions`` empty then."""

    dream_id: int
    opened: bool
    sessions: tuple[str, ...] = ()


def start(namespace: str, *, urgency: Urgency = "dream", reason: str = "schedule") -> Started:
    """Open a dream over the namespace's due sessions, or join the one that is open: a live request makes it live.

    Raises:
        NotFound: there is no such namespace.
    """
    with runtime().database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        opened, dream_id, keys = _open(tx, known.id, urgency)
    # The dream's own job waits from the start: `nexus status` tells how far it is, and who asked waits for this one.
    asked = request(namespace, dream_id, delay=LOOK_AGAIN if keys else 0.0)
    follow_ups.ask([replace(asked, flags=replace(asked.flags, reasons=(reason,)))])
    if opened:
        _carry(namespace, dream_id, keys, urgency)
    elif urgency == "live":
        follow_ups.ask([digest_session.request(namespace, key, "dream_digest", urgency="live") for key in keys])
    return Started(dream_id=dream_id, opened=opened, sessions=keys if opened else ())


def _open(tx: Transaction, namespace_id: int, urgency: Urgency) -> tuple[bool, int, tuple[str, ...]]:
    """Whether a dream was opened, its id, and the sessions whose digests are to come."""
    while True:  # once more when the dream that was in the way has ended meanwhile
        if joined := dreams.join_open(tx, namespace_id, urgency=urgency):
            return False, *joined
        due = dreams.due_sessions(tx, namespace_id)
        dream_id = dreams.start(tx, namespace_id, due, urgency=urgency)
        if dream_id is not None:
            return True, dream_id, tuple(one.session_key for one in due)


def _carry(namespace: str, dream_id: int, keys: Sequence[str], urgency: Urgency) -> None:
    """One chord per slice: each body looks at the whole dream, and whichever comes last closes it."""
    digest = digest_session.digest_session
    try:
        with answering():
            for first in range(0, len(keys), SLICE):
                header = [
                    digest.si(namespace=namespace, session_key=key, reason="dream_digest", urgency=urgency)
                    for key in keys[first : first + SLICE]
                ]
                chord(header, finish_dream.si(namespace=namespace, dream_id=dream_id)).apply_async()
    except (QueueUnavailable, OperationalError) as error:
        log.warning("Dream %d of %s was not queued, reconcile will: %s", dream_id, namespace, error)


def request(namespace: str, dream_id: int, *, delay: float = 0.0) -> Request:
    """The request to finish a dream."""
    arguments = FinishDream(namespace=namespace, dream_id=dream_id)
    return finish_dream.request_for(arguments, delay=delay, wait_reason=REASON)
