"""The Celery state of a job's message, which signals, Flower, error trackers and ``AsyncResult.get()`` see.

====================================================  ========================================================
the message ended because                             Celery's state
====================================================  ========================================================
the job has ended                                     ``SUCCESS``, with the outcome as the result
the job is a dead letter                              ``FAILURE``: :class:`JobFailed`; its cause is the error
the job was dropped                                   ``REVOKED``: ``TaskRevokedError``
an attempt failed, or the job waits                   ``RETRY``: the job's next message has the same id
another run has the job, or the job is done           none: the message is acknowledged (Celery's ``Ignore``)
====================================================  ========================================================

Celery acknowledges the message in each of these states.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NoReturn, cast

from celery import signals, states
from celery.app.task import get_actual_ignore_result
from celery.exceptions import Ignore, Retry, TaskRevokedError

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.producer.result import as_result, job_failed
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.executor import Ended
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.types import JobOutcome, Status, clean_text

log = logging.getLogger(__name__)


def answer(task: Any, request: Request, ended: Ended, *, eager: bool = False) -> dict[str, Any]:
    """The task's result for Celery.

    Args:
        task: the :class:`~nexus_tasks.idempotency.task.JobTask` whose message ended.
        eager: the job ran in the producer's process, so its errors are raised in the caller.

    Raises:
        JobFailed: the job is a dead letter.
        celery.exceptions.Retry: the job waits.
        celery.exceptions.Ignore: the job was dropped, another run has it, or it is done.
    """
    outcome, error = ended.outcome, ended.error
    if outcome.status == "superseded":
        outcome = _known(task, request, outcome, error, eager=eager)
    if outcome.status == "dead":
        raise job_failed(request.kind, _letter(task, request, outcome, error)) from error
    if outcome.status == "dropped":
        if eager:
            raise TaskRevokedError("The job was dropped.")
        revoke(task)
    return as_result(outcome)


def raise_if_it_waits(outcome: JobOutcome, error: BaseException | None) -> None:
    """Do nothing unless the run's outcome says that its job waits.

    Raises:
        celery.exceptions.Retry: the job waits.
    """
    details = outcome.details
    if "waits" in details:
        why = error or Wait(details["waits"], details["seconds"], details["error"])
        raise Retry(exc=why, when=round(details["seconds"], 1))
    if "process" in details:  # the lease ends, and the sweep lets the job wait
        raise Retry(f"The run's process ended with {details['process']}.")


def revoke(task: Any) -> NoReturn:
    """Give the message of a dropped job the state of a revoked task. Celery calls its error links and fails its chord.

    Raises:
        celery.exceptions.Ignore: always, so that Celery stores no other state.
    """
    message, error = task.request, TaskRevokedError("dropped")
    task.backend.mark_as_failure(
        message.id,
        error,
        request=message,
        store_result=not get_actual_ignore_result(task, message),
        state=states.REVOKED,
    )
    how = {"terminated": False, "signum": None, "expired": False}
    if task.app.conf.worker_send_task_events:
        task.send_event("task-revoked", **how)
    signals.task_revoked.send(sender=task, request=message, **how)
    raise Ignore("The job was dropped.")


def _known(task: Any, request: Request, outcome: JobOutcome, error: BaseException | None, *, eager: bool) -> JobOutcome:
    """The outcome of a job that this message did not end: its run has lost the claim, or no run was begun.

    Raises:
        celery.exceptions.Retry: the job waits.
        celery.exceptions.Ignore: another run has the job, or its state is not known.
    """
    if eager and error is not None and "waits" in outcome.details:
        raise error
    if "waits" in outcome.details:
        raise_if_it_waits(outcome, error)
    claims = task.engine.claims
    key = claims.key(request)
    try:
        claim = claims.get(key)
        if claim and claim.state == "waiting" and claim.job_id == request.id:
            seconds = round(max((claim.due_at or 0.0) - claims.now(), 0.0), 1)
            raise Retry(exc=error or Wait(claim.wait_reason, seconds, claim.wait_detail), when=seconds)
        marker = None if claim else claims.marker(key)
    except NexusError as unread:
        raise Ignore("The state of the job is not known.") from unread
    if marker and marker[0] == request.id:
        return JobOutcome(status=cast(Status, marker[1]), job_id=marker[0])
    raise_if_it_waits(outcome, error)
    raise Ignore("Another run has the job, or it ended under another id.")


def _letter(task: Any, request: Request, outcome: JobOutcome, error: BaseException | None) -> JobOutcome:
    """The outcome ``dead`` with the type and text of the error, which is read from storage if need be."""
    if error is not None:
        return replace(outcome, details={"error_type": type(error).__name__, "error": clean_text(str(error))})
    if "error" in outcome.details:
        return outcome
    try:
        return task.engine.storage.outcome(outcome.job_id, request.kind, request.scope, 0.0) or outcome
    except NexusError as unread:
        log.warning("The dead letter of %s was not read: %s", outcome.job_id, unread)
        return outcome
