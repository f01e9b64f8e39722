"""Patch of Celery 5.7: a worker outlives RabbitMQ's consumer timeout.

RabbitMQ closes a channel when a message is not acknowledged within 30 minutes (``consumer_timeout``). This happens when
a run takes longer than 30 minutes. Celery treats the closed channel as a permanent error and ends the worker. A worker
with a pool of threads first waits for its runs, and consumes no messages during this wait. With this patch the worker
connects again. RabbitMQ then delivers the message of the run again. The second delivery starts no second run, because
Redis shows that the job runs or has ended.
"""

from __future__ import annotations

from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import bootsteps


class ConsumerTimeoutStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Makes this worker's consumer treat a consumer timeout as a lost connection."""

    def __init__(self, _worker: object, **_options: object) -> None:
        """Celery makes the step before the worker starts."""

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts."""
        worker.consumer.connection_errors = (*worker.consumer.connection_errors, PreconditionFailed)
