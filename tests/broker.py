"""Looking into the queues of a deployment, whatever its broker: Redis lists, or RabbitMQ, whose counts may lag."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Queue

from tests.sandbox import app, eventually

NODE = "TEST_RABBITMQ"  # the management address of a node, when the tests run with RabbitMQ
RABBITMQ = NODE in os.environ


@contextmanager
def _bound(queue: str) -> Iterator[Any]:
    with app.connection_for_read() as connection, connection.channel() as channel:
        yield (app.amqp.queues.get(queue) or Queue(queue))(channel)


def queued(queue: str = "maintenance") -> int:
    """How many messages the queue holds now."""
    with _bound(queue) as bound:
        return int(bound.queue_declare().message_count)


def holds(count: int, queue: str = "maintenance") -> bool:
    """Whether the queue comes to hold so many messages."""
    if RABBITMQ:
        eventually(lambda: queued(queue) == count, why=f"{queue} holds {queued(queue)} messages, not {count}")
    return queued(queue) == count


def take(count: int, queue: str = "maintenance") -> list[Any]:
    """Take all messages out of the queue, oldest first; there must be so many."""
    assert holds(count, queue), f"{queue} holds {queued(queue)} messages, not {count}"
    with _bound(queue) as bound:
        return [bound.get(no_ack=True) for _ in range(count)]


def lose(count: int = 1, queue: str = "maintenance") -> None:
    """Lose what the queue holds; there must be so many messages."""
    take(count, queue)
