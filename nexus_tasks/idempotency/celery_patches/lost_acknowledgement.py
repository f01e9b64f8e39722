"""Patch of kombu 5.7: a worker goes on consuming after acknowledgements that could not be sent.

A consumer takes only as many messages as the worker can run at a time, until one of them is acknowledged. When an
acknowledgement cannot be sent to Redis, kombu logs the error, and counts the message as unacknowledged for ever. A
worker with 16 threads therefore consumes nothing more after 16 lost acknowledgements. With this patch kombu sends the
acknowledgement once more, on a new connection. If this fails too, kombu no longer counts the message. Redis may deliver
the message again after the visibility timeout. The message's claim then shows that nothing is left to do.
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
