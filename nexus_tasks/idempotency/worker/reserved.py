"""Messages that a worker has received and not begun (Celery: reserved).

When a message is revoked, this module drops the claim (the record in Redis) of its job. The module also tells Redis
that the other messages are not lost, so that the sweep (a loop of every worker) does not send them again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery.signals import task_revoked
from celery.worker import state

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.engine import JobEngine
from nexus_tasks.idempotency.kind import JobKind

log = logging.getLogger(__name__)


def listen_for_revokes() -> None:
    """Drop the claims of revoked messages from now on. A worker calls this at its start."""
    task_revoked.connect(_on_revoked, weak=False, dispatch_uid="nexus-revoked")


def _on_revoked(sender: Any, request: Any, **_how: Any) -> None:
    if not _is_job(sender):
        return
    try:
        drop_revoked(sender.engine, sender.kind, request.id, request.kwargs)
    except NexusError as error:
        # The claim stays. Its next message has the same id and is revoked as well.
        log.warning("Job %s was revoked, but its claim could not be dropped: %s", request.id, error)


def _is_job(task: Any) -> bool:
    return isinstance(getattr(task, "kind", None), JobKind)


def drop_revoked(engine: JobEngine, kind: JobKind, job_id: str, args: Mapping[str, Any]) -> None:
    """Drop the claim of a revoked job, if the claim has the id ``job_id``. The rows in storage then ask for no job.

    A canvas delivery (a message in a chord or chain, for which Celery itself waits) with this id is forgotten.

    Raises:
        NexusError: Redis or Postgres does not answer.
    """
    key = engine.claims.key(kind.request_for(kind.load(args)))
    claim = engine.claims.get(key)
    if claim and claim.job_id == job_id:
        engine.storage.withdraw([claim])  # before the drop, because reconcile would otherwise queue the job again
    dropped, wakeups = engine.claims.drop(key, job_id=job_id, delivery=job_id)
    if dropped:
        log.info("Job %s (%s) was revoked and is dropped.", job_id, kind.name)
    engine.publisher.publish(wakeups)


def report_reserved(claims: Claims) -> None:
    """Tell Redis which messages this worker has received and not begun. The sweep calls this before each tick.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    try:
        waiting = [one for one in set(state.reserved_requests) - set(state.active_requests) if _is_job(one.task)]
    except RuntimeError:  # the sets changed while they were copied; the next call comes in 2 s
        return
    reserved = {}
    for one in waiting:
        # A message with wrong arguments must not stop the sweep. A kind's own validators may raise any exception.
        with suppress(Exception):
            kind: JobKind = one.task.kind
            reserved[one.id] = claims.key(kind.request_for(kind.load(one.kwargs)))
    claims.keep_reserved(reserved)
