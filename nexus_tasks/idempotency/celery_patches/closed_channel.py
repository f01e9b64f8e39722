"""Patch of kombu 5.7: a worker that loses Redis during a run reconnects instead of ending.

When the connection is lost, Celery 5.7 closes its channel at once. kombu 5.7 uses the closed channel again: to put
unacknowledged messages back, and to acknowledge them when their runs end. It reads the address of a connection that is
gone, and the ``AttributeError`` ends the worker. Its callers expect and log a connection error instead. The claims need
neither the messages nor the acknowledgements.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError

_address = Channel._connparams


class ClosedChannelStep(bootsteps.Step):  # type: ignore[misc]
    """Lets closed channels of this process, a worker, fail as a lost connection does."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        Channel._connparams = _address_unless_closed


def _address_unless_closed(channel: Any, *args: Any, **options: Any) -> Any:
    if channel.connection is None or channel.connection.client is None:
        raise ConnectionError("The channel is closed, its connection was lost.")
    return _address(channel, *args, **options)
