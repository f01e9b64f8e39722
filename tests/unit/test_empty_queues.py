"""The sweep asks the broker which queues are empty. A queue of another application hides no other queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nexus_tasks.idempotency.worker.sweeper import Sweeper


class Refused(Exception):
    """What RabbitMQ answers when a queue is declared with other arguments. It closes the channel."""


class Lost(Exception):
    """The connection is lost."""


class Broker:
    """A broker whose queue ``theirs`` raises an error."""

    connection_errors, channel_errors = (Lost,), (Refused,)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def channel(self) -> Iterator[Any]:
        yield SimpleNamespace(closed=False)

    def queue(self, name: str) -> Any:
        def bound(channel: Any) -> Any:
            def declare() -> Any:
                assert not channel.closed
                if name == "theirs":
                    channel.closed = True
                    raise self.error
                return SimpleNamespace(message_count=1 if name == "full" else 0)

            return SimpleNamespace(queue_declare=declare)

        return bound


@pytest.mark.parametrize(("error", "empty"), [(Refused(), {"a", "z"}), (Lost(), {"a"})])
def test_a_queue_of_another_application_hides_no_empty_queue(error: Exception, empty: set[str]) -> None:
    broker = Broker(error)
    names = ["a", "full", "theirs", "z"]
    app: Any = SimpleNamespace(
        connection_for_read=lambda: broker, amqp=SimpleNamespace(queues={name: broker.queue(name) for name in names})
    )
    claims = SimpleNamespace(lock=lambda *_, **__: None)
    engine: Any = SimpleNamespace(app=app, claims=claims)
    assert Sweeper(engine)._empty(names) == empty
