"""Patch of kombu 5.7: a worker that loses Redis during a run reconnects instead of ending.

When the connection is lost, Celery 5.7 closes its channel at once. kombu 5.7 uses the closed channel again, to put
unacknowledged messages back and to acknowledge messages whose runs end. kombu then reads the address of a connection
that is gone, and the ``AttributeError`` ends the worker. With this patch kombu raises a connection error, which kombu's
callers expect and log. No job is lost: claims need neither these messages nor these acknowledgements.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError

_address = Channel._connparams


class ClosedChannelStep(bootsteps.Step):  # type: ignore[misc]
    """Makes closed channels of this worker process fail as a lost connection does."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        Channel._connparams = _address_unless_closed


def _address_unless_closed(channel: Any, *args: Any, **options: Any) -> Any:
    if channel.connection is None or channel.connection.client is None:
        raise ConnectionError("The channel is closed, its connection was lost.")
    return _address(channel, *args, **options)
