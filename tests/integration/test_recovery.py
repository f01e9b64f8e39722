"""Recovery on one machine: what a dead process held is given back at once, and every claim names its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claim, Worker
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.worker.holder import this_machine
from nexus_tasks.idempotency.worker.run import new_token
from nexus_tasks.idempotency.worker.sweeper import GRACE, REPORTED, Sweeper
from tests.broker import holds, lose, queued, take
from tests.holders import another
from tests.integration.claiming import LEASE, Bench, new_bench
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, play, play_together
from tests.sandbox import Sandbox, engine, eventually

BOUND = 5.0  # seconds from a kill to the job's new run
ANN = Worker(node="celery@ann", host="ann", pid=7)


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def worker_of(bench: Bench, name: str) -> Worker | None:
    claim = bench.claims.get(bench.key(bench.request(name)))
    return claim.worker if claim else None


def test_a_claim_names_the_worker_of_its_run_also_while_it_waits_for_the_next(bench: Bench) -> None:
    bench.claims.claim([bench.request("a"), bench.request("b")])
    begun, lead, _ = bench.claims.begin(
        bench.request("a"), "t1", lease=LEASE, cap=16, gathers=True, published_at="", worker=ANN
    )
    assert begun is Begun.RUN
    assert lead is not None
    assert lead.worker == ANN
    assert str(ANN) == "celery@ann (process 7)"
    taken = bench.take(lead, [bench.request("b")]) or []
    assert [claim.worker for claim in taken] == [ANN]

    bench.flush()
    assert bench.claims.renew([lead, *taken], lease=LEASE) == []
    assert worker_of(bench, "a") == worker_of(bench, "b") == ANN

    bench.claims.wait([lead, *taken], "retry", 2.0, retry=True)
    assert worker_of(bench, "a") == worker_of(bench, "b") == ANN


def test_a_claim_of_the_release_before_names_no_worker(bench: Bench) -> None:
    assert bench.run(bench.request("a")).worker is None
    bench.client.hdel(bench.key(bench.request("a")), "worker")
    assert worker_of(bench, "a") is None


# --- one look ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def sweeper(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sweeper:  # noqa: ARG001
    monkeypatch.setattr(Claims, "uptime", lambda _self: 1e6)
    return Sweeper(engine)


def begins(holder: str, name: str = "a") -> Claim:
    """The process ``holder`` begins a job."""
    request = play.request_for(Play(name=name))
    engine.claims.claim([request])
    _, claim, _ = engine.claims.begin(
        request, new_token(holder), lease=LEASE, cap=10_000, gathers=False, published_at="", worker=ANN
    )
    assert claim is not None
    return claim


def now(claim: Claim) -> Claim:
    found = engine.claims.get(claim.key)
    assert found is not None
    return found


def test_what_a_dead_process_held_is_given_back_at_the_next_look_and_its_death_counts_once(sweeper: Sweeper) -> None:
    with another(engine.holder.folder) as (holder, process):
        claim, lives = begins(holder), begins(engine.holder.id, "b")
        sweeper.look_for_dead()
        assert now(claim).state == "running"
        process.kill()
        process.wait()
    sweeper.look_for_dead()
    assert (now(claim).state, now(claim).crashes) == ("pending", 1), "its wake-up is published by the same look"
    assert holds(1)
    assert now(claim).worker == ANN, "the claim still names the worker that died"
    assert (now(lives).state, now(lives).crashes) == ("running", 0)
    bench = Bench(engine.claims)
    bench.claims.renew([lives], lease=10 * LEASE)
    bench.jump(LEASE + 1)
    sweeper.look_for_dead()
    sweeper.tick()
    assert now(claim).crashes == 1, "the end of the lease is no second crash"
    bench.audit()


def test_a_message_that_a_dead_process_had_received_is_sent_again_soon(sweeper: Sweeper) -> None:
    bench = Bench(engine.claims)
    with another(engine.holder.folder) as (_, process):
        play.delay(name="old")
        lose()  # a process has received it
        bench.jump(REPORTED + 0.1)
        play.delay(name="new")
        lose()
        sweeper.look_for_dead()
        assert holds(0), "a living process may still begin them"
        process.kill()
        process.wait()
    sweeper.look_for_dead()
    [message] = take(1)
    assert message.headers["kwargsrepr"].count("old") == 1
    sweeper.look_for_dead()
    assert holds(0), "a process that has received the new message may not have reported it yet"
    bench.jump(REPORTED + 0.1)
    eventually(lambda: sweeper.look_for_dead() or queued(), within=REPORTED + 2)
    lose()
    bench.jump(GRACE + 0.1)
    sweeper.tick()
    assert holds(0), "a message that was sent again has a longer grace"
    bench.audit()


def test_a_run_that_the_next_worker_has_begun_is_not_taken_from_it(sweeper: Sweeper) -> None:
    with another(engine.holder.folder) as (holder, _):
        claim = begins(holder)
    bench = Bench(engine.claims)
    bench.jump(LEASE + 1)
    bench.sweep_leases()  # a worker of another machine was first
    bench.sweep_due()
    again = begins(engine.holder.id)
    sweeper.look_for_dead()
    assert (now(claim).state, now(claim).token, now(claim).crashes) == ("running", again.token, 1)
    bench.audit()


def test_a_dead_process_of_another_machine_keeps_its_claims_until_their_leases_end(sweeper: Sweeper) -> None:
    folder = engine.holder.folder
    with another(folder) as (holder, _):
        claim = begins(holder)
    (folder / f"{this_machine()}.{holder}").rename(folder / f"another-machine.{holder}")
    sweeper.look_for_dead()
    assert now(claim).state == "running"
    bench = Bench(engine.claims)
    bench.jump(LEASE + 1)
    sweeper.tick()
    assert (now(claim).state, now(claim).crashes) == ("waiting", 1)


def test_all_that_a_dead_process_held_comes_back_at_one_look(sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexus_tasks.idempotency.worker.orphans.AT_ONCE", 10)
    with another(engine.holder.folder) as (holder, _):
        for i in range(35):
            begins(holder, str(i))
    sweeper.look_for_dead()
    assert engine.claims.counts("acme") == {"pending": 8, "waiting": 27}


def test_all_orphans_come_back_in_one_tick(sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexus_tasks.idempotency.worker.orphans.AT_ONCE", 10)
    for i in range(35):
        begins("no process of this machine", str(i))
    bench = Bench(engine.claims)
    bench.jump(LEASE + 1)
    sweeper.tick()
    assert engine.claims.counts("acme") == {"waiting": 35}
    bench.audit()


def test_a_job_without_attempts_left_is_buried_at_the_same_look(sweeper: Sweeper) -> None:
    Nexus().create_namespace("acme")
    with another(engine.holder.folder) as (holder, _):
        claim = begins(holder)
        Bench(engine.claims).set(play.request_for(Play()), crashes=4)
    sweeper.look_for_dead()
    [letter] = Nexus().jobs(status="dead")
    assert letter.id == claim.job_id
    assert Nexus().job(letter.id).crashes == 5
    assert engine.claims.counts("acme") == {}


# --- real workers, with long leases -----------------------------------------------------------------------------------
@pytest.fixture
def patient(deploy: Callable[..., Sandbox]) -> Sandbox:
    """Its leases outlast the test."""
    return deploy(NEXUS_LEASE_SECONDS="60")


def start(here: Sandbox, **options: Any) -> Any:
    return here.worker(*WITH_KINDS, **options, **ROOT)


def runs_again(killed_at: float, name: str = "a") -> float:
    """Wait for the second attempt; returns the seconds since the kill."""
    eventually(lambda: len(attempts(name)) == 2, within=60)
    return time.monotonic() - killed_at


def test_the_jobs_of_a_killed_worker_run_again_in_another_within_seconds(patient: Sandbox) -> None:
    first = start(patient)
    play.delay(plan=("hold", "ok"))
    eventually(attempts)
    claim = engine.claims.running()[0]
    assert claim.worker is not None
    assert claim.worker.node.endswith(f"@{patient.name}")
    assert claim.worker.pid == first.process.pid
    start(patient)
    first.kill()
    assert runs_again(time.monotonic()) < BOUND
    eventually(lambda: engine.claims.counts("acme") == {})


@pytest.mark.long
def test_a_worker_that_starts_gives_back_at_once_what_its_predecessor_held(patient: Sandbox) -> None:
    first = start(patient)
    lead = play_together.delay(name="a", plan=("b", "c"))
    asked = [play.delay(name=name, plan=("hold", "ok")) for name in "xy"]
    eventually(lambda: attempts("a") and attempts("x") and attempts("y"))
    first.kill()
    start(patient)
    ready = time.monotonic()
    assert [result.wait(60).status for result in (lead, *asked)] == ["completed"] * 3
    assert runs_again(ready, "x") < BOUND
    assert runs_again(ready, "y") < BOUND


@pytest.mark.long
def test_the_job_of_a_killed_child_of_a_pool_runs_again_while_its_parent_lives(patient: Sandbox) -> None:
    worker = start(patient, pool="processes", concurrency=2)
    asked = play.delay(plan=("hold", "ok"))
    eventually(attempts)
    [(pid, _)] = attempts()
    assert pid != worker.process.pid
    os.kill(pid, signal.SIGKILL)
    assert runs_again(time.monotonic()) < BOUND
    assert asked.wait(60).status == "completed"
    assert worker.process.poll() is None


@pytest.mark.long
def test_an_isolated_job_that_kills_its_process_runs_again_within_seconds(patient: Sandbox) -> None:
    start(patient)
    asked = play.apply_async(kwargs={"plan": ("kill", "ok")}, countdown=60)
    bench = Bench(engine.claims)
    bench.set(play.request_for(Play()), crashes=2)
    bench.client.zadd(f"{patient.name}:due", {claim.key: 0 for claim in engine.claims.waiting()})
    eventually(attempts)
    assert runs_again(time.monotonic()) < BOUND
    assert asked.wait(60).status == "completed"


def can_unshare() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts")


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="only root may make process namespaces")
def test_in_containers_whose_process_ids_repeat_a_restarted_worker_gives_back_at_once(patient: Sandbox) -> None:
    first = start(patient, within=CONTAINER)
    asked = play.delay(plan=("hold", "ok"))
    eventually(attempts)
    first.kill()
    start(patient, within=CONTAINER)
    ready = time.monotonic()
    assert runs_again(ready) < BOUND
    assert asked.wait(60).status == "completed"
    assert [pid for pid, _ in attempts()] == [1, 1]
