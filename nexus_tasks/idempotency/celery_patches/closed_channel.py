"""A worker that loses Redis under its runs reconnects instead of ending.

When the connection is lost, Celery 5.7 closes its channel at once; kombu 5.7 then meets the channel again, first to put
unacknowledged messages back and later to acknowledge them when their runs end. It looks for the address of a connection
that is no more, and the ``AttributeError`` ends the worker. As a connection error it is what the callers expect, and
log: the claims need neither the one nor the other.
"""

from __future__ import annotations

from typing import Any

from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError

_address = Channel._connparams


def outlive_lost_connections() -> None:
    """Let closed channels of this process, a worker, fail as a lost connection does."""
    Channel._connparams = _address_unless_closed


def _address_unless_closed(channel: Any, *args: Any, **options: Any) -> Any:
    if channel.connection is None or channel.connection.client is None:
        raise ConnectionError("The channel is closed, its connection was lost.")
    return _address(channel, *args, **options)
