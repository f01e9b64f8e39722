"""A worker that sees messages, has free slots and begins nothing mends its consumer, or exits for its supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from nexus_tasks import Nexus
from tests.broker import RABBITMQ
from tests.integration.jobkinds import ROOT, attempts, go, play
from tests.sandbox import Sandbox, app, eventually

BREAKABLE = ("--include", "tests.integration.jobkinds,tests.integration.broken_consumer")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(RABBITMQ, reason="the consumer is broken inside kombu's Redis transport"),
]


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_consumer_that_never_consumes_again_gets_a_new_connection(here: Sandbox, pool: str) -> None:
    Nexus().create_namespace("acme")
    worker = here.worker(*BREAKABLE, pool=pool, concurrency=2, **ROOT)
    assert app.control.broadcast("stop_polling", reply=True, timeout=5)
    for n in range(4):  # the request under way may still bring one
        play.delay(name=f"n{n}")
    eventually(lambda: all(attempts(f"n{n}") for n in range(4)), within=40, why=worker.text())
    assert "connecting anew" in worker.text()
    assert worker.process.poll() is None


def test_a_worker_whose_event_loop_is_stuck_ends(deploy: Callable[..., Sandbox]) -> None:
    """Its runs under way end, or are given back."""
    here = deploy(NEXUS_SHUTDOWN_GRACE="3")
    Nexus().create_namespace("acme")
    worker = here.worker(*BREAKABLE, concurrency=2, **ROOT)
    play.delay(name="held", plan=("hold",))
    eventually(lambda: attempts("held"))
    app.control.broadcast("block_the_loop")
    time.sleep(1)
    play.delay(name="next")
    eventually(lambda: "has not turned" in worker.text(), within=40, why=worker.text())
    go("held")
    eventually(lambda: worker.process.poll() is not None, within=30, why=worker.text())
    assert worker.process.returncode == 1
    held = here.deployment.claims.key(play.request_for(play.kind.load({"name": "held"})))
    assert here.deployment.claims.get(held) is None, "the run under way has ended"


def test_a_worker_whose_slots_are_taken_is_left_alone(here: Sandbox) -> None:
    Nexus().create_namespace("acme")
    worker = here.worker(*BREAKABLE, concurrency=1, **ROOT)
    play.delay(name="held", plan=("hold",))
    eventually(lambda: attempts("held"))
    play.delay(name="next")
    time.sleep(8)
    go("held")
    eventually(lambda: attempts("next"))
    assert "connecting anew" not in worker.text()
