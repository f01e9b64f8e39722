"""Patch of kombu 5.7: an acknowledgement that cannot be sent holds no place of the worker for good.

A consumer takes no further message while it has as many unacknowledged ones as the worker has slots. When Redis does
not take an acknowledgement, kombu logs that and counts the message for ever. After one lost acknowledgement per slot
the worker consumes nothing more. With this patch kombu tries once more, on a new connection, and then stops counting.
The message may come back after the visibility timeout; its claim then says that nothing is left to do.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual
from kombu.transport.redis import QoS

_ack = QoS.ack


def keep_consuming() -> None:
    """Apply the patch to this process."""
    QoS.ack = _ack_or_forget


def _ack_or_forget(qos: Any, delivery_tag: Any) -> None:
    try:
        _ack(qos, delivery_tag)
    except qos.channel.connection_errors:
        try:
            _ack(qos, delivery_tag)
        except qos.channel.connection_errors:
            virtual.QoS.ack(qos, delivery_tag)
            raise  # kombu logs it
