"""Sending wake-ups. A wake-up that is not sent is no loss: the sweep finds its claim pending and sends another."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery
from celery.exceptions import QueueNotFound
from kombu.exceptions import KombuError

from nexus_tasks.idempotency.claim import Wakeup
from nexus_tasks.idempotency.request import VERSION

log = logging.getLogger(__name__)

HEADER = "nexus"
TASK_PREFIX = "nexus_tasks."


def publish(app: Celery, wakeups: Iterable[Wakeup], **options: Any) -> int:
    """Publish each wake-up as a message of its job's own task; returns how many went out."""
    sent = 0
    rest = list(wakeups)
    for wakeup in rest:
        task = app.tasks.get(TASK_PREFIX + wakeup.kind)
        try:
            if task is None:
                # A job kind that only another worker knows: its own sweep publishes it.
                log.warning("No task named %s%s is registered here.", TASK_PREFIX, wakeup.kind)
                continue
            task.send(wakeup, **options)
            sent += 1
        except QueueNotFound as error:
            log.warning("Job %s has no queue: %s", wakeup.job_id, error)
        except KombuError as error:
            # The broker is away, for the others too: waiting for it once is enough.
            log.warning(
                "%d jobs are queued, their messages are not (%s); the sweep sends them.", len(rest) - sent, error
            )
            break
    return sent


def header(wakeup: Wakeup) -> Mapping[str, Any]:
    """What a message tells the worker beside the task's arguments."""
    return {HEADER: {"version": VERSION, "published_at": wakeup.published_at}}
