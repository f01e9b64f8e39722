"""A worker's connections to a broker that goes silent while new ones work."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from kombu.transport import redis

from nexus_tasks import Deployment, Nexus, Settings
from nexus_tasks.idempotency.celery_patches.redis_transport import Channel
from nexus_tasks.idempotency.redis_client import PONG_WITHIN
from tests.sandbox import Sandbox, eventually
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


def test_while_redis_is_silent_one_write_at_a_time_waits_for_it(here: Sandbox) -> None:
    """Before, each write held a thread of a server for 5 s, also when the Redis was that of another cell."""
    with proxy(Path(urlsplit(here.servers.redis_url).path)) as wires:
        settings = Settings(
            database_url=here.database_url,
            redis_url=f"redis://127.0.0.1:{wires.port}/0",
            key_prefix=here.name,
            home=str(here.folder),
        )
        with closing(Deployment(settings)) as deployment:
            nexus = Nexus(deployment)
            assert nexus.remember("agent", "First.").enqueued == 1
            wires.silence()
            wires.silent_from(b"*")
            assert nexus.remember("agent", "Second.").enqueued == 0
            with ThreadPoolExecutor(1) as pool:
                time.sleep(1.1)
                trying = pool.submit(nexus.remember, "agent", "Third.")
                time.sleep(0.5)
                began = time.monotonic()
                for number in range(20):
                    assert nexus.remember("agent", f"Another {number}.").stored == 1
                assert time.monotonic() - began < 4, "with a wait for Redis in each call, 100 s"
                assert trying.result().stored == 1
            wires.silent_from(b"")
            wires.cut()
            assert eventually(lambda: nexus.remember("agent", f"Back {time.time()}.").enqueued, within=15) == 1
