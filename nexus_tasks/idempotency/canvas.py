"""Canvas deliveries: messages that Celery itself waits for, because they are in a chord or a chain, or have links.

Jobs are deduplicated, so another message's run may do the work of such a message. The delivery is therefore parked:
Redis keeps it with the claim until the run that does its work has ended. Then a message with the delivery's own id
makes Celery account for the delivery. Celery stores the run's outcome as the result, counts the part of a chord and
sends the links.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from celery.exceptions import Ignore
from kombu.utils.json import dumps

from nexus_tasks import tracing
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.celery_states import raise_if_it_waits
from nexus_tasks.idempotency.claim import Claimed, Ticket, Wakeup
from nexus_tasks.idempotency.engine import JobEngine
from nexus_tasks.idempotency.producer.wire_format import headers_of_caller
from nexus_tasks.idempotency.request import Delivery, Request
from nexus_tasks.idempotency.worker.executor import Ended, execute
from nexus_tasks.types import JobOutcome, Status

log = logging.getLogger(__name__)

# Options that make a message a canvas delivery. An explicit task_id and `ignore_result=False` do so too.
CALLBACKS = ("chord", "group_id", "chain", "link", "link_error")
# Options of one call or one publish. They are left out when the delivery is sent again.
_OF_THE_CALL = ("producer", "publisher", "connection", "router", "retry", "retry_policy", "add_to_parent")
# An attribute of a worker's request -> the option with which the message was sent.
_AS_DELIVERED = {
    **{name: name for name in ("chord", "group_index", "chain", "root_id", "parent_id", "ignore_result", "shadow")},
    "group": "group_id",
    "callbacks": "link",
    "errbacks": "link_error",
}


def is_canvas(task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether Celery waits for this very message. If so, Celery needs the result under the message's own id."""
    waited_for = any(options.get(name) for name in CALLBACKS)
    return waited_for or task_id is not None or options.get("ignore_result") is False


def ask(task: Any, requests: Sequence[Request], options: Mapping[str, Any]) -> list[Ticket]:
    """Claim the jobs of a canvas delivery, park the delivery with the claims, and publish its message.

    The message has the id of the first request.

    Args:
        task: the :class:`~nexus_tasks.idempotency.task.JobTask` of the requests' kind.
        options: the options of Celery's ``apply_async``.
    """
    engine: JobEngine = task.engine
    once = {name: value for name, value in options.items() if name in _OF_THE_CALL}
    kept = {name: value for name, value in options.items() if value is not None and name not in once}
    if context := tracing.carrier():
        kept["headers"] = {**context, **(kept.get("headers") or {})}
    parent = task.app.current_worker_task
    if parent:  # kept with the delivery, because a process that sends it again does not run the parent task
        kept.setdefault("parent_id", parent.request.id)
    kept.setdefault("root_id", (parent and parent.request.root_id) or requests[0].id)
    tickets = engine.claims.claim(_parked(requests, kept))
    mine = Wakeup(
        key="",
        job_id=requests[0].id,
        kind=task.kind.name,
        queue=requests[0].queue,
        args=json.loads(requests[0].args),
        published_at="",
        namespace=requests[0].namespace,
        options=kept,
    )
    others = []
    for wakeup in [ticket.wakeup for ticket in tickets if ticket.wakeup]:
        if wakeup.job_id == mine.job_id:
            mine = replace(wakeup, options=kept)
        else:
            others.append(wakeup)
    # When this delivery made the claim and the claim waits, no message is sent now. The claim has the delivery's id, so
    # the wake-up that follows the wait is the delivery's message.
    its_turn_comes = tickets[0].outcome is Claimed.ENQUEUED and tickets[0].wakeup is None and len(requests) == 1
    if not its_turn_comes:
        engine.publisher.publish([mine], **once)
    engine.publisher.publish(others)
    return tickets


def _parked(requests: Sequence[Request], options: Mapping[str, Any]) -> list[Request]:
    """The requests, each with the delivery that it is a part of."""
    delivery = Delivery(id=requests[0].id, options=dumps(options), parts=len(requests))
    trace = dumps({name: options[name] for name in ("root_id", "parent_id", "headers") if options.get(name)})
    return [replace(one, delivery=replace(delivery, first=i == 0), trace=trace) for i, one in enumerate(requests)]


def deliver(task: Any, request: Request, header: Mapping[str, Any]) -> Ended:
    """Run the job of a canvas delivery in a worker, or return the outcome of the run that has served it.

    Raises:
        Retry: the job waits; the end of a later run sends the delivery again.
        Ignore: another run does the work, or Celery has accounted for the delivery already.
    """
    engine: JobEngine = task.engine
    claims, published_at = engine.claims, str(header.get("published_at", ""))
    ended = None
    try:
        found = claims.delivery_outcome(request.id, queue=request.queue, published_at=published_at)
        if found is None and "status" not in header:  # a message with an outcome begins no run
            [asked] = _parked([request], as_sent(task.request))
            node = task.request.hostname or ""
            ended = execute(engine, task.kind, asked, published_at=published_at, eager=False, node=node)
            found = claims.delivery_outcome(request.id, queue=request.queue)
        if found is None:
            if ended is not None:
                raise_if_it_waits(ended.outcome, ended.error)
            raise Ignore("Another run does the job, the job waits, or the message is accounted for already.")
        if ended is None or (ended.outcome.status, ended.outcome.job_id) != found:
            ended = Ended(outcome=_whole(engine, request, *found))
    except NexusError as error:
        log.warning("The outcome of %s is not known: %s", request.id, error)
        raise Ignore from error
    return ended


def _whole(engine: JobEngine, request: Request, status: str, job_id: str) -> JobOutcome:
    """The outcome of the run that served a delivery, with the details of its run row or dead letter."""
    row = engine.storage.outcome(job_id, request.kind, request.scope, 0.0)
    if row is None or row.job_id != job_id:  # a run of a kind that writes no run rows
        return JobOutcome(status=cast(Status, status), job_id=job_id)
    return replace(row, status=cast(Status, status))


def as_sent(request: Any) -> dict[str, Any]:
    """The options with which a message was sent, read from the worker's request."""
    delivered = {option: getattr(request, name, None) for name, option in _AS_DELIVERED.items()}
    delivered["headers"] = headers_of_caller(request) or None
    return {option: value for option, value in delivered.items() if value is not None}


def note_accounted(engine: JobEngine, delivery: str) -> None:
    """Note that Celery has accounted for a delivery. Without this note the delivery is sent once more."""
    try:
        engine.claims.delivery_accounted(delivery)
    except NexusError as error:
        log.warning("Delivery %s is completed, and will be completed once more: %s", delivery, error)
