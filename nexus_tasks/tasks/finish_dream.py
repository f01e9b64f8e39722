"""finish_dream: the job that closes a dream. A dream digests every due session of a namespace, then reflects.

The digests of a dream run in Celery chords. The dream's state is its row in the table ``dreams``, which survives a
flush of Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from celery import chord
from kombu.exceptions import OperationalError

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.storage import dreams, namespaces, webhooks
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks import digest_session, follow_ups, reflect_namespace, reflect_perspective
from nexus_tasks.tasks.arguments import MemoryId, NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome, Urgency

log = logging.getLogger(__name__)

SLICE = 200  # digests per chord
REASON = follow_ups.DREAM  # the reason for which this job waits; `follow_ups.hurry_dream` wakes it
LOOK_AGAIN = 15.0  # seconds until the job checks again whether the digests and reflections have ended


class FinishDream(Arguments):
    """One dream."""

    scope: ClassVar = ("namespace", "dream_id")
    namespace: NamespaceName
    dream_id: MemoryId

    def flags(self) -> Flags:
        """Urgency ``dream``, so that live jobs of the namespace go first. This job calls no model."""
        return Flags(urgency="dream")


@job(arguments=FinishDream, queue="digest", outbox=of_rows(FinishDream, dreams.wanted, mark=dreams.mark))
@in_namespace
def finish_dream(work: NamespaceRun, arguments: FinishDream) -> JobOutcome:
    """Close a dream after its digests and its reflections. Jobs that gave up do not delay the end of the dream."""
    namespace = work.namespace
    with work.database.transaction() as tx:
        dream = dreams.get(tx, namespace.id, arguments.dream_id, lock=True)
        if dream is None:
            return work.commit(tx, JobOutcome(status="gone"))
        if dream.state == "finished":
            return work.commit(tx, JobOutcome(status="unchanged"))
        if to_come := dreams.digests_to_come(tx, dream):
            raise Wait(REASON, LOOK_AGAIN, f"digests to come: {to_come} of {len(dream.sessions)}")
        if not dreams.has_reflected(tx, dream):
            _ensure_asked(work.deployment, [reflect_namespace.request(namespace.name, urgency=dream.urgency)])
            raise Wait(REASON, LOOK_AGAIN, "reflections to come")
        if perspectives := dreams.reflections_to_come(tx, dream):
            _ensure_asked(work.deployment, [reflect_perspective.request(namespace.name, *one) for one in perspectives])
            raise Wait(REASON, LOOK_AGAIN, f"reflections to come: {len(perspectives)}")
        dreams.finish(tx, dream.id)
        details = {"dream": dream.id, "sessions": len(dream.sessions)}
        webhooks.tell(tx, namespace.id, "dream.finished", details)
        return work.commit(tx, JobOutcome(status="completed", details=details))


def _ensure_asked(deployment: Deployment, requests: Sequence[Request]) -> None:
    """Ask for jobs that should exist already. A job that runs gets no rerun."""
    follow_ups.ask(deployment, [replace(one, anew=True) for one in requests])


@dataclass(frozen=True, kw_only=True)
class Started:
    """The namespace's open dream. If it was open before this call, ``opened`` is false and ``sessions`` is empty."""

    dream_id: int
    opened: bool
    sessions: tuple[str, ...] = ()


def start(deployment: Deployment, namespace: str, *, urgency: Urgency = "dream", reason: str = "schedule") -> Started:
    """Open a dream over the namespace's due sessions, or join the open dream. With ``live`` the joined dream gets live.

    Raises:
        NotFound: there is no such namespace.
    """
    with deployment.database.transaction() as tx:
        known = namespaces.get(tx, namespace)
        opened, dream_id, keys = _open(tx, known.id, urgency)
    # The job that closes the dream waits from the start. So `nexus status` shows the dream's progress, and a caller can
    # wait for this job.
    asked = request(namespace, dream_id, delay=LOOK_AGAIN if keys else 0.0)
    follow_ups.ask(deployment, [replace(asked, flags=replace(asked.flags, reasons=(reason,)))])
    if opened:
        _carry(deployment, namespace, dream_id, keys, urgency)
    elif urgency == "live":
        live = [digest_session.request(namespace, key, "dream_digest", urgency="live") for key in keys]
        follow_ups.ask(deployment, live)
    return Started(dream_id=dream_id, opened=opened, sessions=keys if opened else ())


def _open(tx: Transaction, namespace_id: int, urgency: Urgency) -> tuple[bool, int, tuple[str, ...]]:
    """Whether a dream was opened, its id, and the sessions whose digests are to come."""
    while True:  # try again when an open dream ended before it could be joined
        if joined := dreams.join_open(tx, namespace_id, urgency=urgency):
            return False, *joined
        due = dreams.due_sessions(tx, namespace_id)
        dream_id = dreams.start(tx, namespace_id, due, urgency=urgency)
        if dream_id is not None:
            return True, dream_id, tuple(one.session_key for one in due)


def _carry(deployment: Deployment, namespace: str, dream_id: int, keys: Sequence[str], urgency: Urgency) -> None:
    """Ask for the digests of a dream, one chord per 200 digests.

    The body of each chord is a ``finish_dream`` job, which checks all digests of the dream. The last one closes the
    dream.
    """
    digest, finish = digest_session.digest_session.on(deployment), finish_dream.on(deployment)
    try:
        with answering():
            for first in range(0, len(keys), SLICE):
                header = [
                    digest.si(namespace=namespace, session_key=key, reason="dream_digest", urgency=urgency)
                    for key in keys[first : first + SLICE]
                ]
                chord(header, finish.si(namespace=namespace, dream_id=dream_id)).apply_async()
    except NotImplementedError:
        # The application has no result backend with chords. So nothing but the job that closes the dream checks the
        # digests, every 15 s.
        digests = [digest_session.request(namespace, key, "dream_digest", urgency=urgency) for key in keys]
        follow_ups.ask(deployment, digests)
    except (QueueUnavailable, OperationalError) as error:
        log.warning("Digests of dream %d of %s were not queued; reconcile queues them: %s", dream_id, namespace, error)


def request(namespace: str, dream_id: int, *, delay: float = 0.0) -> Request:
    """The request to finish a dream."""
    arguments = FinishDream(namespace=namespace, dream_id=dream_id)
    return finish_dream.request_for(arguments, delay=delay, wait_reason=REASON)
