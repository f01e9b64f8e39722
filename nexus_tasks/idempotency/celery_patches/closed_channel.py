"""Patch of kombu 5.7: a worker that loses Redis during a run reconnects instead of ending.

When the connection is lost, Celery 5.7 closes its channel at once. Later kombu 5.7 uses the closed channel again: it
puts unacknowledged messages back, and acknowledges messages whose runs end. For this, kombu reads the address of the
lost connection, which raises an ``AttributeError`` and ends the worker. With this patch kombu raises a connection error
instead. The callers of kombu expect a connection error and log it. No job is lost, because claims (the records of jobs)
do not depend on these messages and acknowledgements.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError

from nexus_tasks.idempotency.celery_patches.lost_acknowledgement import keep_consuming
from nexus_tasks.idempotency.celery_patches.refused_writes import lost_when_refused

_address = Channel._connparams


class ClosedChannelStep(bootsteps.Step):  # type: ignore[misc]
    """Applies this patch and those of ``lost_acknowledgement.py`` and ``refused_writes.py`` to this worker process."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        Channel._connparams = _address_unless_closed
        keep_consuming()


def _address_unless_closed(channel: Any, asynchronous: bool = False) -> Any:
    if channel.connection is None or channel.connection.client is None:
        raise ConnectionError("The channel is closed, its connection was lost.")
    found = _address(channel, asynchronous=asynchronous)
    probe = f"{channel.global_keyprefix}writable" if asynchronous else ""  # only the consumer is asynchronous
    found["connection_class"] = lost_when_refused(found["connection_class"], probe=probe)
    return found
