"""Jobs in real workers: what happens when messages double, processes die, and servers go away."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.embedded import ServerAddresses, redis
from nexus_tasks.errors import JobFailed, Misconfigured
from nexus_tasks.idempotency.claim import Claim
from tests.broker import lose, queued
from tests.integration.claiming import Bench
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, go, play, play_once
from tests.sandbox import Sandbox, Worker, engine, eventually, sandbox

LEASE = 1.5


@pytest.fixture
def quick(deploy: Callable[..., Sandbox]) -> Sandbox:
    """Leases of seconds, so that a test of a crash takes no longer."""
    return deploy(NEXUS_LEASE_SECONDS=str(LEASE))


def start(here: Sandbox, **options: Any) -> Worker:
    return here.worker(*WITH_KINDS, **options, **ROOT)


def claim_of(name: str = "a") -> Claim | None:
    return engine.claims.get(engine.claims.key(play.request_for(Play(name=name))))


def runs(name: str = "a") -> bool:
    return bool(attempts(name))


def test_a_message_that_arrives_twice_at_once_runs_once(here: Sandbox) -> None:
    start(here, concurrency=16)
    tickets = engine.claims.claim([play.request_for(Play(name=str(i), plan=("hold",))) for i in range(5)])
    wakeups = [ticket.wakeup for ticket in tickets if ticket.wakeup]
    assert engine.publisher.publish([wakeup for wakeup in wakeups for _ in range(4)]) == 20
    eventually(lambda: all(runs(str(i)) for i in range(5)))
    eventually(lambda: queued() == 0)  # every copy has been received
    for i in range(5):
        go(str(i))
    eventually(lambda: engine.claims.counts("acme") == {})
    assert [len(attempts(str(i))) for i in range(5)] == [1] * 5


def test_a_job_whose_worker_is_killed_runs_again(quick: Sandbox) -> None:
    first = start(quick)
    asked = play.delay(plan=("hold", "ok"))
    eventually(runs)
    rerun = play.delay(reason="later")
    first.kill()
    start(quick)
    assert asked.wait(60).status == rerun.wait(60).status == "completed"
    assert [reasons for _, reasons in attempts()] == ["", "later"]  # one run has served both


@pytest.mark.long
def test_a_job_that_kills_its_worker_ends_as_a_dead_letter_and_harms_no_other(
    deploy: Callable[..., Sandbox],
) -> None:
    here = deploy(NEXUS_LEASE_SECONDS="0.6", NEXUS_MAX_ATTEMPTS="2")
    Nexus().create_namespace("acme")
    # Celery takes `prefork` for "as configured", `processes` is the same pool. Its child dies and is replaced.
    worker = start(here, pool="processes", concurrency=2)
    poison = play.delay(name="poison", plan=("kill",))
    innocent = [play_once.delay(name=str(i)) for i in range(5)]
    with pytest.raises(JobFailed, match="worker died"):
        poison.wait(60)
    assert len(attempts("poison")) == 2
    assert [asked.wait(60).status for asked in innocent] == ["completed"] * 5
    assert worker.process.poll() is None


@pytest.mark.long
def test_from_its_second_crash_on_a_job_kills_only_itself(deploy: Callable[..., Sandbox]) -> None:
    here = deploy(NEXUS_LEASE_SECONDS="0.6", NEXUS_MAX_ATTEMPTS="3")
    Nexus().create_namespace("acme")
    worker = start(here, concurrency=4)  # threads: a crash takes all of them along
    held = play.delay(name="held", plan=("hold",))
    eventually(lambda: runs("held"))
    poison = play.apply_async(kwargs={"name": "poison", "plan": ("kill",)}, countdown=60)
    named = [f"twice-{n}" for n in range(6)]  # who crashed by another's fault
    plans = {name: ("hold",) if name in named[:2] else ("ok",) for name in named}
    twice = [
        play.apply_async(kwargs={"name": name, "plan": plans[name], "reason": "x"}, countdown=60) for name in named
    ]
    bench = Bench(engine.claims)
    for name in ("poison", *named):
        bench.set(play.request_for(Play(name=name)), crashes=2)
    bench.client.zadd(f"{here.name}:due", {claim.key: 0 for claim in engine.claims.waiting()})
    with pytest.raises(JobFailed, match="worker died"):
        poison.wait(60)
    eventually(lambda: all(runs(name) for name in named), within=60, why="one waits for the end of another")
    for name in named[:2]:
        go(name)
    assert [asked.wait(60).status for asked in twice] == ["completed"] * 6
    assert [[reasons for _, reasons in attempts(name)] for name in named] == [["x"]] * 6
    apart = {pid for name in ("poison", *named) for pid, _ in attempts(name)}
    assert len(apart) == 7, "a process for each of them"
    assert worker.process.pid not in apart
    found = claim_of("held")
    assert found is not None
    assert (found.state, found.crashes) == ("running", 0)
    go("held")
    assert held.wait(60).status == "completed"


@pytest.mark.long
def test_the_prefork_pool_keeps_its_leases_in_its_children(quick: Sandbox) -> None:
    worker = start(quick, pool="processes", concurrency=2)
    results = [play.delay(name=name, plan=("hold",)) for name in "ab"]
    eventually(lambda: runs("a") and runs("b"))
    held = time.monotonic() + 2 * LEASE
    eventually(lambda: time.monotonic() > held)
    found = [claim_of(name) for name in "ab"]
    assert [claim.crashes if claim else None for claim in found] == [0, 0]
    pids = {attempts(name)[0][0] for name in "ab"}
    assert len(pids) == 2
    assert worker.process.pid not in pids
    for name in "ab":
        go(name)
    assert [asked.wait(60).status for asked in results] == ["completed"] * 2


@pytest.mark.long
def test_bodies_that_would_end_the_process_leave_the_pool_whole(here: Sandbox) -> None:
    worker = start(here, concurrency=2)
    for i in range(4):
        play.delay(name=str(i), plan=("exit", "ok"))
    assert play_once.delay().wait(60).status == "completed"
    bench = Bench(engine.claims)
    eventually(lambda: all(runs(str(i)) for i in range(4)))
    eventually(lambda: bench.jump(3) or engine.claims.counts("acme") == {}, within=60)
    assert [len(attempts(str(i))) for i in range(4)] == [2] * 4
    assert worker.process.poll() is None


def test_a_worker_that_starts_lifts_pauses_and_misses_messages(here: Sandbox) -> None:
    lost = play_once.delay()
    lose(1, "reflect")  # the only message of its queue
    Bench(engine.claims).jump(11)
    engine.claims.pause("play", str(Misconfigured()))
    paused = play.delay()
    play.apply(kwargs={})
    assert [claim.wait_reason for claim in engine.claims.waiting()] == ["pause"]
    start(here)
    assert paused.wait(60).status == lost.wait(60).status == "completed"


def test_a_flush_under_a_run_loses_nothing(quick: Sandbox) -> None:
    start(quick)
    play.delay(plan=("hold",), reason="x")
    eventually(runs)
    Bench(engine.claims).flush()
    eventually(lambda: (found := claim_of()) and found.state == "running")  # the heartbeat has made it again
    found = claim_of()
    assert found is not None
    assert found.flags.reasons == ("x",)
    go()
    eventually(lambda: claim_of() is None)
    assert play.delay(name="b").wait(60).status == "completed"  # the worker hears of new jobs as before


@contextmanager
def own_redis(folder: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """A Redis of this test's own: its URL, and how to kill and start it."""
    folder.mkdir()
    socket = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket), "--appendonly", "yes", "--appendfsync", "always")
    running: list[subprocess.Popen[bytes]] = []

    def launch() -> None:
        with (folder / "log").open("ab") as log:
            running.append(
                subprocess.Popen([redis.executable(), *options, "--dir", str(folder)], stdout=log, stderr=log)
            )
        eventually(lambda: redis.ping(socket) is redis.State.UP)

    def kill() -> None:
        running[-1].kill()
        running[-1].wait()

    launch()
    try:
        yield f"unix://{socket}", kill, launch
    finally:
        kill()


@pytest.mark.long
def test_a_redis_that_restarts_costs_no_run(servers: ServerAddresses, tmp_path: Path) -> None:
    with (
        own_redis(tmp_path / "redis") as (url, kill, launch),
        sandbox(replace(servers, redis_url=url), NEXUS_LEASE_SECONDS=str(LEASE)) as here,
    ):
        worker = start(here)
        goes_on, ends = play.delay(name="goes-on", plan=("hold",)), play.delay(name="ends", plan=("hold",))
        eventually(lambda: runs("goes-on") and runs("ends"))
        go("ends")
        os.kill(worker.process.pid, signal.SIGSTOP)  # so that one of them ends while Redis is away
        kill()
        os.kill(worker.process.pid, signal.SIGCONT)
        away = time.monotonic() + LEASE / 2
        eventually(lambda: time.monotonic() > away)
        launch()
        assert ends.wait(60).status == "completed"
        found = claim_of("goes-on")
        assert found is not None
        assert (found.state, found.crashes) == ("running", 0)
        go("goes-on")
        assert goes_on.wait(60).status == "completed"
        assert len(attempts("goes-on")) == len(attempts("ends")) == 1
        assert play.delay(name="after").wait(60).status == "completed"
