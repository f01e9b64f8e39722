"""A worker's way to the broker: one Redis client per channel, not one for every message it acknowledges.

kombu makes a client object for each acknowledgement and event. A client is a table of some two hundred callbacks around
a connection pool, and making it costs more than the command itself: a fifth of what a short job costs its worker.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.transport import redis


class Channel(redis.Channel):  # type: ignore[misc]
    """kombu's channel, keeping the client that it would make anew each time. A client is safe between threads."""

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        kept = self._kept
        if kept is None or kept.connection_pool is not self.pool:  # a new pool follows every lost connection
            kept = self._kept = super()._create_client()
        return kept


class ChannelStep(bootsteps.Step):  # type: ignore[misc]
    """Lets this worker process use :class:`Channel`, before it connects. With another broker than Redis it is idle."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        redis.Transport.Channel = Channel
