"""Messages between their arrival in a worker and their run: what is revoked there, and what is held back there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.signals import task_revoked
from celery.worker import state

from nexus_tasks.errors import InvalidInput, NexusError
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.producer.publisher import publish

if TYPE_CHECKING:
    from nexus_tasks.idempotency.task import JobTask

log = logging.getLogger(__name__)


def listen() -> None:
    """Hear of revoked messages in this process, a worker."""
    task_revoked.connect(_on_revoked, weak=False, dispatch_uid="nexus-revoked")


def _on_revoked(sender: Any, request: Any, **_how: Any) -> None:
    if not _is_job(sender):
        return
    try:
        revoked(sender, request.id, request.kwargs)
    except NexusError as error:
        # The claim stays; its next message bears the same id and is revoked as well.
        log.warning("The claim of job %s, which was revoked, is still there: %s", request.id, error)


def _is_job(task: Any) -> bool:
    return hasattr(task, "request_for")


def revoked(task: JobTask, job_id: str, args: Mapping[str, Any]) -> None:
    """Drop the claim whose own id was revoked, with the work it stands for; a canvas delivery waits for it no more.

    Raises:
        NexusError: Redis or Postgres does not answer.
    """
    bound = binding()
    key = bound.claims.key(task.request_for(task.load(args)))
    claim = bound.claims.get(key)
    if claim and claim.job_id == job_id:
        bound.storage.withdraw(claim)  # first: what storage wants would be asked for again
    dropped, wakeups = bound.claims.drop(key, job_id=job_id, delivery=job_id)
    if dropped:
        log.info("Job %s (%s) was revoked and is dropped.", job_id, task.kind)
    publish(task.app, wakeups)


def hold(claims: Claims) -> None:
    """Say which messages this worker has received and not begun (a rate limit, a busy pool): they are not lost.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    try:
        waiting = [one for one in set(state.reserved_requests) - set(state.active_requests) if _is_job(one.task)]
    except RuntimeError:  # one arrived just now; there is another look in two seconds
        return
    held = {}
    for one in waiting:
        with suppress(InvalidInput):  # sent past the task class; it must not keep the sweep from its work
            held[one.id] = claims.key(one.task.request_for(one.task.load(one.kwargs)))
    claims.hold(held)
