"""A backlog that nobody works on for a while, with the sweep looking at it all the time, and then is drained.

BACKLOG_JOBS and BACKLOG_HOLD_SECONDS make it as large and as old as one likes: 50,000 and 300 are what
docs/guarantees.md speaks of.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

import pytest

from nexus_tasks import Nexus
from nexus_tasks.idempotency.worker.sweeper import GRACE
from tests import rabbitmq
from tests.broker import queued
from tests.integration.claiming import AHEAD
from tests.integration.jobkinds import ROOT, WITH_KINDS, play_once
from tests.sandbox import Sandbox, eventually

JOBS = int(os.environ.get("BACKLOG_JOBS", "2000"))
HOLD = float(os.environ.get("BACKLOG_HOLD_SECONDS", "20"))
QUEUE = play_once.kind.queue

pytestmark = [pytest.mark.long, pytest.mark.timeout(300 + HOLD + JOBS / 10)]


@pytest.fixture(params=["redis", "rabbitmq"])
def backlog(request: pytest.FixtureRequest, deploy: Callable[..., Sandbox]) -> Iterator[tuple[Sandbox, int]]:
    """A deployment and how many jobs it gets: fewer with RabbitMQ, which takes them one by one."""
    if request.param == "redis":
        yield deploy(), JOBS
        return
    if why := rabbitmq.missing():
        pytest.skip(why)
    with rabbitmq.node() as address:
        yield deploy(NEXUS_BROKER_URL=rabbitmq.make_vhost(address, "backlog")), JOBS // 4


def ended(here: Sandbox) -> int:
    """How many jobs have run."""
    return sum(1 for _ in here.redis().scan_iter(f"{here.name}:test:*", count=10_000))


def left() -> dict[str, int]:
    """What ``nexus status`` says of the namespace's jobs."""
    [found] = Nexus().status("acme").namespaces
    return found.jobs.to_dict()


def test_a_held_backlog_is_not_multiplied_and_status_is_true(backlog: tuple[Sandbox, int]) -> None:
    here, jobs = backlog
    assert HOLD > GRACE, "a younger backlog tempts no sweep"
    Nexus().create_namespace("acme")
    idle = here.worker(*WITH_KINDS, "--queues", "capture", **ROOT)  # it sweeps, but works on other queues
    made = play_once.enqueue_many([{"name": str(n)} for n in range(jobs)])
    assert all(result.created for result in made)
    held_until = time.monotonic() + HOLD
    eventually(lambda: queued(QUEUE) == AHEAD)  # the other jobs stand in the namespace's line
    while time.monotonic() < held_until:
        assert left() == {"waiting": jobs - AHEAD, "pending": AHEAD, "running": 0, "dead": 0}
        assert queued(QUEUE) == AHEAD
        time.sleep(1)  # nothing is waited for: the backlog gets older

    worker = here.worker(*WITH_KINDS, "--queues", QUEUE, concurrency=8, **ROOT)
    before = jobs

    def drained() -> bool:
        nonlocal before
        said = left()
        now = said["waiting"] + said["pending"] + said["running"]
        assert said["dead"] == 0
        assert jobs - ended(here) <= now <= before, f"status says {said}, {before} were left before"
        before = now
        return now == 0

    eventually(drained, within=120 + jobs / 10)
    assert ended(here) == jobs
    assert queued(QUEUE) == 0
    received = re.findall(r"Task nexus_tasks\.play_once\[(\S+)\] received", worker.text())
    assert len(received) == len(set(received)) == jobs
    assert "sent again" not in worker.text() + idle.text()
