"""Runs have an end and workers end: hung code, signals in mid-run, and what becomes of the jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import JobFailed
from nexus_tasks.idempotency.claim import Claim
from tests.integration.claiming import Bench
from tests.integration.jobkinds import (
    BODIES,
    ROOT,
    WITH_KINDS,
    Play,
    attempts,
    go,
    heard,
    linger,
    play,
    play_briefly,
    work,
)
from tests.sandbox import Sandbox, Worker, engine, eventually

LEASE = 1.5  # seconds
POOLS = pytest.mark.parametrize("pool", ["threads", "processes"])  # Celery takes `prefork` for "as configured"


@pytest.fixture
def quick(deploy: Callable[..., Sandbox]) -> Sandbox:
    """Leases and a shutdown grace of seconds."""
    here = deploy(NEXUS_LEASE_SECONDS=str(LEASE), NEXUS_SHUTDOWN_GRACE="1")
    Nexus().create_namespace("acme")
    return here


def start(here: Sandbox, **options: object) -> Worker:
    return here.worker(*WITH_KINDS, **options, **ROOT)  # type: ignore[arg-type]


def claim_of(name: str = "a", kind: object = play) -> Claim | None:
    return engine.claims.get(engine.claims.key(kind.request_for(Play(name=name))))  # type: ignore[attr-defined]


def runs(count: int = 1, name: str = "a") -> bool:
    return len(attempts(name)) >= count


def given_back(name: str) -> bool:
    """Whether the job can be begun again, and nothing is counted against it."""
    found = claim_of(name)
    assert found is not None
    return (found.state in ("waiting", "pending"), found.crashes, found.errors) == (True, 0, 0)


def ended(worker: Worker, *, within: float) -> int:
    """The exit code of a worker that ends by itself."""
    eventually(lambda: worker.process.poll() is not None, within=within, why=f"it does not end: {worker.text()}")
    return int(worker.process.returncode)


# --- runs have an end -------------------------------------------------------------------------------------------------
@POOLS
def test_a_run_that_hangs_gives_its_job_to_another_run(quick: Sandbox, pool: str) -> None:
    worker = start(quick, pool=pool, concurrency=4)
    asked = play_briefly.delay(plan=("hang", "ok"))
    assert asked.wait(60).status == "completed"
    assert "ran longer than 1 s" in worker.text()
    assert quick.sql("SELECT count(*) FROM dead_letters") == [(0,)]
    go()  # the run that hung comes back
    assert play.delay(name="b").wait(30).status == "completed"
    assert claim_of(kind=play_briefly) is None
    assert len(attempts()) == 2
    assert worker.process.poll() is None


def test_a_run_over_its_limit_counts_as_an_error_and_can_commit_nothing(quick: Sandbox) -> None:
    bench, stopped = Bench(engine.claims), []

    def hang(run: object, _arguments: object) -> None:
        eventually(run.lost.is_set, within=30)  # type: ignore[attr-defined]
        stopped.append(claim_of(kind=play_briefly))
        run.check()  # type: ignore[attr-defined]

    BODIES["a"] = hang
    try:
        asked = play_briefly.delay()
        for errors in range(1, 6):
            [result] = work()
            assert result["status"] in ("superseded", "dead"), "the run must not commit"
            eventually(lambda: (found := claim_of(kind=play_briefly)) is None or found.state == "waiting")
            found = claim_of(kind=play_briefly)
            if found is not None:
                assert (found.errors, found.crashes, found.wait_reason) == (errors, 0, "retry")
                assert found.wait_detail == "RanTooLong"
            bench.jump(400)
            bench.sweep_due()
    finally:
        BODIES.clear()
    with pytest.raises(JobFailed, match="ran longer than 1 s"):
        asked.wait(30)
    [(kind, errors, crashes, where)] = quick.sql("SELECT error_type, errors, crashes, traceback FROM dead_letters")
    assert (kind, errors, crashes) == ("RanTooLong", 5, 0)
    assert "in hang" in where, "the letter says where the run hung"


@pytest.mark.long
def test_a_run_in_a_process_of_its_own_is_killed_when_it_is_over_its_limit(quick: Sandbox) -> None:
    worker = start(quick, concurrency=2)
    asked = play_briefly.apply_async(kwargs={"plan": ("hang", "ok")}, countdown=60)
    bench = Bench(engine.claims)
    bench.set(play_briefly.request_for(Play()), crashes=2)
    bench.client.zadd(f"{quick.name}:due", {claim.key: 0 for claim in engine.claims.waiting()})
    eventually(runs)
    [(hung, _)] = attempts()
    assert hung != worker.process.pid
    assert asked.wait(30).status == "completed"
    eventually(lambda: not _alive(hung), within=10, why="a hung process stays")
    assert worker.process.poll() is None, "a thread that waits for such a process is not held"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_a_pool_child_whose_code_holds_the_interpreter_is_killed(quick: Sandbox) -> None:
    """A frozen process stands for it: no thread of either can do anything."""
    worker = start(quick, pool="processes", concurrency=1)
    asked = play_briefly.delay(plan=("hang", "ok"))
    eventually(runs)
    [(hung, _)] = attempts()
    os.kill(hung, signal.SIGSTOP)
    assert asked.wait(60).status == "completed", "its child is the only one"
    eventually(lambda: not _alive(hung), within=30)
    assert worker.process.poll() is None


# --- workers end ------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_worker_says_how_many_threads_hung_runs_hold(quick: Sandbox) -> None:
    worker = start(quick, concurrency=4)
    play_briefly.delay(plan=("hang", "hold"))
    eventually(engine.claims.held_threads)
    [held] = Nexus().status().held_threads
    assert (held.held, held.threads) == (1, 4)
    assert held.worker.endswith(f"@{quick.name}")
    assert worker.process.poll() is None
    go()
    eventually(lambda: not engine.claims.held_threads(), within=20, why="a thread that came back counts as held")


@pytest.mark.long
def test_a_worker_with_half_its_threads_held_fails_and_gives_the_other_runs_back(quick: Sandbox) -> None:
    worker = start(quick, concurrency=4)
    play.delay(name="good", plan=("hold",))
    for name in "ab":
        play_briefly.delay(name=name, plan=("hang",))
    eventually(lambda: runs(name="good") and runs(name="a") and runs(name="b"))
    assert ended(worker, within=20) == 1
    assert "2 of 4 threads are held" in worker.text()
    assert given_back("good")


@POOLS
@pytest.mark.long
@pytest.mark.parametrize("times", [1, 5])
def test_preemptions_are_no_poison(quick: Sandbox, pool: str, times: int) -> None:
    asked = play.delay(plan=("hang",))
    for attempt in range(1, times + 1):
        worker = start(quick, pool=pool, concurrency=2)
        eventually(lambda attempt=attempt: runs(attempt), why=worker.text())
        told = time.monotonic()
        worker.process.terminate()
        assert ended(worker, within=15) == 0
        assert time.monotonic() - told < 1 + 7  # the grace, and what the runs and children need to give back
        assert given_back("a")
    go()
    start(quick, pool=pool, concurrency=2)
    assert asked.wait(30).status == "completed"


@POOLS
@pytest.mark.long
def test_a_shutdown_waits_for_a_task_that_is_no_job(quick: Sandbox, pool: str) -> None:
    worker = start(quick, pool=pool, concurrency=2)
    play.delay(plan=("hang",))
    linger.delay("plain")
    eventually(lambda: runs() and heard("plain"))
    worker.process.terminate()
    eventually(lambda: given_back("a"), within=15)
    time.sleep(1)
    assert worker.process.poll() is None
    go("plain")
    assert ended(worker, within=15) == 0
    assert len(heard("plain")) == 2


@POOLS
@pytest.mark.parametrize("signals", [(signal.SIGQUIT,), (signal.SIGINT, signal.SIGINT)], ids=["quit", "int twice"])
@pytest.mark.long
def test_a_cold_shutdown_counts_no_failure(quick: Sandbox, pool: str, signals: tuple[signal.Signals, ...]) -> None:
    worker = start(quick, pool=pool, concurrency=2, NEXUS_SHUTDOWN_GRACE="60")
    for name in "ab":
        play.delay(name=name, plan=("hang",))
    eventually(lambda: runs(name="a") and runs(name="b"))
    for one in signals:
        worker.process.send_signal(one)
        time.sleep(0.3)
    assert ended(worker, within=15) == 1
    assert "Traceback" not in worker.text()
    for name in "ab":
        assert given_back(name)


# --- code that blocks the interpreter ---------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize("told", [False, True], ids=["by itself", "after SIGTERM"])
def test_a_worker_whose_interpreter_is_blocked_ends_and_counts_a_crash(quick: Sandbox, told: bool) -> None:
    """No thread of it can run, and none handles a signal."""
    worker = start(quick, concurrency=4)
    asked = [play.delay(name="neighbour", plan=("hold", "ok"))]
    # It has begun before the other blocks the interpreter, which no later start survives.
    eventually(lambda: runs(name="neighbour"))
    asked.append(play.delay(name="a", plan=("block", "ok")))
    eventually(runs)
    if told:
        worker.process.terminate()
    assert ended(worker, within=1 + 10 + 5) == 1
    assert "in perform" in worker.text(), "the log says where it was blocked"
    start(quick, concurrency=4)
    assert [job.wait(30).status for job in asked] == ["completed"] * 2
    assert len(attempts()) == len(attempts("neighbour")) == 2


@pytest.mark.long
def test_a_job_that_always_blocks_the_interpreter_ends_no_third_worker(quick: Sandbox) -> None:
    """From its second crash on it runs in a process of its own, and there it is over its limit."""
    asked = play_briefly.delay(plan=("block",))
    for crashes in (1, 2):
        worker = start(quick, concurrency=2)
        assert ended(worker, within=1 + 10 + 10) == 1
        found = claim_of(kind=play_briefly)
        assert found is not None
        assert found.crashes < crashes + 1
    third = start(quick, concurrency=2)
    eventually(lambda: len(attempts()) >= 3, within=30)
    assert play.delay(name="b").wait(30).status == "completed"
    found = eventually(lambda: (one := claim_of(kind=play_briefly)) and one.errors and one, within=30)
    assert (found.crashes, found.errors) == (2, 1)
    assert third.process.poll() is None
    asked.revoke()
