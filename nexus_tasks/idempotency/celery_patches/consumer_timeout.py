"""Patch of Celery 5.7: a worker outlives RabbitMQ's consumer timeout.

RabbitMQ closes a channel with a message that is not acknowledged for 30 minutes (``consumer_timeout``), such as the
message of a longer run. Celery takes this for an error that lasts, and ends the worker. With a pool of threads the
worker then waits for its runs and does not consume. With this patch the worker connects again. The message comes again
too. It does no harm: the claim of the run is live, or it has ended.
"""

from __future__ import annotations

from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import bootsteps


class ConsumerTimeoutStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Makes this worker's consumer take a consumer timeout for a lost connection."""

    def __init__(self, _worker: object, **_options: object) -> None:
        """Celery makes the step before the worker starts."""

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts."""
        worker.consumer.connection_errors = (*worker.consumer.connection_errors, PreconditionFailed)
