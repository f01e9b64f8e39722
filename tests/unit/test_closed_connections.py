"""The event loop of a worker forgets a connection to Redis that is closed."""

from __future__ import annotations

import pytest
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.transport import redis

from nexus_tasks.idempotency.celery_patches import redis_transport as patch


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Transport, "Channel", redis.Transport.Channel)
    monkeypatch.setattr(redis, "MultiChannelPoller", redis.MultiChannelPoller)
    monkeypatch.setattr(redis.Transport, "register_with_event_loop", redis.Transport.register_with_event_loop)
    patch.RedisClientStep(None)


def test_the_event_loop_calls_no_closed_connection() -> None:
    hub, others = Hub(), object()
    hub.on_tick.add(others)
    lost, kept = (Connection("redis://localhost:1/0").transport for _ in range(2))
    for transport in (lost, kept):
        transport.register_with_event_loop(transport, hub)
    assert len(hub.on_tick) == 3

    lost.cycle.close()

    assert len(hub.on_tick) == 2
    assert others in hub.on_tick
    kept.cycle.close()
    assert hub.on_tick == {others}
