"""Sending wake-ups. A wake-up that is not sent is no loss: the sweep finds its claim pending and sends another.

Where claims and messages share a Redis, :func:`enqueue` claims a job and pushes its message in one script: no claim
without its message, no message without its claim. With any other broker, and for messages that only Celery can write
(a canvas, say), it takes two steps: the claim, then the message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from celery import Celery
from celery.exceptions import QueueNotFound
from kombu.exceptions import KombuError

from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Ticket, Wakeup
from nexus_tasks.idempotency.producer.wire_format import Template, is_plain, make_template
from nexus_tasks.idempotency.request import Request

log = logging.getLogger(__name__)

TASK_PREFIX = "nexus_tasks."


def enqueue(app: Celery, requests: Sequence[Request], **options: Any) -> list[Ticket]:
    """Claim jobs, all in one step, and publish those that are new; ``options`` are Celery's, of ``apply_async``.

    Raises:
        QueueUnavailable: Redis does not answer; nothing was queued.
    """
    messages: list[tuple[str, str, str] | None] | None = None
    if not options and is_plain(app):
        templates = {kind: template_of(app, kind) for kind in {request.kind for request in requests}}
        messages = [
            made.render(request) if (made := templates[request.kind]) and not request.delay else None
            for request in requests
        ]
    tickets = binding().claims.claim(requests, messages)
    publish(app, [ticket.wakeup for ticket in tickets if ticket.wakeup], **options)
    return tickets


def publish(app: Celery, wakeups: Iterable[Wakeup], **options: Any) -> int:
    """Publish each wake-up as a message of its job's own task; returns how many went out."""
    rest = list(wakeups)
    sent, batched = 0, False
    try:
        if not rest:
            return 0
        if options or not is_plain(app):
            for wakeup in rest:
                sent += _send(app, wakeup, **options)
            return sent
        with app.producer_or_acquire() as producer, producer.connection._reraise_as_library_errors():
            # Redis takes a batch in few round trips; a batch cannot be used again after an error, nor does it retry.
            batched = len(rest) > 1 and producer.supports_batch_publish
            retry = {"retry": False} if batched else {}
            with producer.batch():
                for wakeup in rest:
                    template = template_of(app, wakeup.kind)
                    if template and template.queue == wakeup.queue and wakeup.options is None:
                        template.publish(producer, wakeup, **retry)
                        sent += 1
                    else:
                        sent += _send(app, wakeup, producer=producer, **retry)
    except KombuError as error:
        # The broker is away, for the others too: waiting for it once is enough.
        log.warning("Of %d queued jobs not every message was sent (%s); the sweep sends them.", len(rest), error)
        return 0 if batched else sent
    return sent


def _send(app: Celery, wakeup: Wakeup, **options: Any) -> bool:
    """Let Celery itself write and publish a message."""
    task = app.tasks.get(TASK_PREFIX + wakeup.kind)
    if task is None:
        # A job kind that only another worker knows: its own sweep publishes it.
        log.warning("No task named %s%s is registered here.", TASK_PREFIX, wakeup.kind)
        return False
    try:
        task.send(wakeup, **options)
    except QueueNotFound as error:
        log.warning("Job %s has no queue: %s", wakeup.job_id, error)
        return False
    return True


def template_of(app: Celery, kind: str) -> Template | None:
    """The template of a kind's messages, made once per process; ``None``: Celery writes each."""
    made = binding().templates
    if kind not in made:
        task = app.tasks.get(TASK_PREFIX + kind)
        try:
            made[kind] = make_template(task, binding().claims.url) if task else None
        except (QueueNotFound, KombuError) as error:
            log.debug("No template for messages of %s: %s", kind, error)
            return None
    return made[kind]
