"""A worker's connections to a broker that goes silent while new ones work."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from kombu.transport import redis

from nexus_tasks.idempotency.celery_patches.redis_transport import Channel
from nexus_tasks.idempotency.redis_client import PONG_WITHIN
from tests.sandbox import Sandbox
from tests.silence import proxy


def test_an_idle_connection_that_went_silent_delays_a_publisher_by_two_seconds(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the event loop waits 5 s for each connection of each pool: for acknowledgements, events and messages."""
    monkeypatch.setattr(redis.Transport, "Channel", Channel)
    options = {"socket_timeout": 5, "health_check_interval": 2, "global_keyprefix": f"{here.name}:celery:"}
    with (
        proxy(Path(urlsplit(here.servers.redis_url).path)) as wires,
        Connection(f"redis://127.0.0.1:{wires.port}/0", transport_options=options) as connection,
        connection.SimpleQueue("silent") as queue,
    ):
        queue.put("first")
        time.sleep(1.1)  # a connection that was idle for 1 s is pinged
        assert wires.silence()
        began = time.monotonic()
        queue.put("second")
        assert time.monotonic() - began < PONG_WITHIN + 1.5
        assert here.redis().llen(f"{here.name}:celery:silent") == 2
