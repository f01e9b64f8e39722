"""RabbitMQ's consumer timeout ends no worker that runs long jobs, and its memory alarm keeps no worker from ending."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from nexus_tasks import Nexus
from tests import rabbitmq
from tests.broker import RABBITMQ
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, go, play
from tests.sandbox import Sandbox, engine, eventually
from tests.silence import proxy

pytestmark = [
    pytest.mark.skipif(not RABBITMQ, reason="runs with --rabbitmq"),
    pytest.mark.parametrize("pool", ["threads", "processes"]),
]
TIMEOUT = 4  # seconds that the node waits for an acknowledgement


@pytest.fixture(scope="module")
def node() -> Iterator[rabbitmq.Node]:
    """A node of these tests' own: an alarm would stop all other tests."""
    limits = f"{{consumer_timeout, {TIMEOUT * 1000}}}, {{channel_tick_interval, 1000}}"
    with rabbitmq.own_node(f"[{{rabbit, [{limits}]}}].") as started:
        yield started


@pytest.fixture
def there(node: rabbitmq.Node, deploy: Callable[..., Sandbox], pool: str) -> Iterator[Sandbox]:
    """A deployment on that node."""
    broker = rabbitmq.make_vhost(node.address, pool)
    yield deploy(NEXUS_BROKER_URL=broker, NEXUS_SHUTDOWN_GRACE="1", NEXUS_LEASE_SECONDS="1.5")
    rabbitmq.drop_vhost(node.address, pool)


def test_a_consumer_timeout_costs_neither_the_run_nor_the_worker(there: Sandbox, pool: str) -> None:
    Nexus().create_namespace("acme")
    worker = there.worker(*WITH_KINDS, pool=pool, concurrency=2, **ROOT)
    long = play.delay(name="long", plan=("hold",))
    eventually(lambda: attempts("long"))
    eventually(lambda: "PRECONDITION_FAILED" in worker.text(), within=60, why="the node waits for ever")
    assert play.delay(name="next").wait(30).status == "completed", "the worker does not consume again"
    go("long")
    assert long.wait(30).status == "completed"
    assert len(attempts("long")) == 1
    assert worker.process.poll() is None


def test_a_worker_whose_connection_went_silent_consumes_again(there: Sandbox, pool: str) -> None:
    Nexus().create_namespace("acme")
    broker = urlsplit(there.environment["NEXUS_BROKER_URL"])
    assert broker.port
    with proxy(broker.port) as wire:
        through = broker._replace(netloc=broker.netloc.replace(f":{broker.port}", f":{wire.port}"))
        worker = there.worker(*WITH_KINDS, pool=pool, concurrency=2, NEXUS_BROKER_URL=through.geturl(), **ROOT)
        assert play.delay(name="before").wait(60).status == "completed"
        assert wire.silence()
        silent = time.monotonic()
        assert play.delay(name="after").wait(90).status == "completed"
        assert time.monotonic() - silent < 30
        assert worker.process.poll() is None


def test_a_worker_ends_during_a_memory_alarm(there: Sandbox, node: rabbitmq.Node, pool: str) -> None:
    worker = there.worker(*WITH_KINDS, pool=pool, concurrency=2, **ROOT)
    play.delay(plan=("hang",))
    eventually(attempts)
    node.control("set_vm_memory_high_watermark", "absolute", "1")
    try:
        time.sleep(5)  # the worker's events fill what the blocked connection takes
        worker.process.terminate()
        eventually(lambda: worker.process.poll() is not None, within=25, why="it does not end")
    finally:
        node.control("set_vm_memory_high_watermark", "0.8")
    found = engine.claims.get(engine.claims.key(play.request_for(Play())))
    assert found is not None
    assert (found.state in ("waiting", "pending"), found.crashes, found.errors) == (True, 0, 0)
