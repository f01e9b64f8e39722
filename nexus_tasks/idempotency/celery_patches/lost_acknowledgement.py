"""Patch of kombu 5.7: a worker goes on consuming after acknowledgements that could not be sent.

A consumer has at most as many unacknowledged messages as the worker can run at a time. When an acknowledgement cannot
be sent to Redis, kombu logs the error, and counts the message as unacknowledged for ever. A worker with 16 threads
therefore takes no more messages after 16 lost acknowledgements. With this patch kombu sends the acknowledgement once
more, on a new connection. If this fails too, kombu no longer counts the message. Redis may deliver the message again
after the visibility timeout. The job's claim (its record in Redis) then shows that no work is left.
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
            raise  # kombu logs the error
