"""The sweep, one tick at a time: what it finds, what it leaves alone, and what must not stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from nexus_tasks import Nexus, digest_session
from nexus_tasks.deployment import default_deployment
from nexus_tasks.errors import Misconfigured, QueueUnavailable, Transient
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.engine import attach
from nexus_tasks.idempotency.worker import sweeper as sweeping
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.run import new_token
from nexus_tasks.idempotency.worker.sweeper import LOCK, Sweeper, SweepStep
from tests.broker import holds, lose, queued
from tests.integration.claiming import Bench
from tests.integration.jobkinds import Play, play, play_once
from tests.sandbox import Sandbox, engine, eventually

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def _started_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's Redis may be seconds old; a sweep holds back after a restart."""
    monkeypatch.setattr(Claims, "uptime", lambda _self: 1e6)


@pytest.fixture
def bench(here: Sandbox) -> Bench:  # noqa: ARG001
    return Bench(engine.claims)


@pytest.fixture
def sweeper(bench: Bench) -> Sweeper:  # noqa: ARG001
    """One that has looked before, so that nothing is due by its first look."""
    made = Sweeper(engine)
    made.tick()
    return made


def begins(name: str = "a") -> Claim:
    """A worker begins the job, and is never heard of again."""
    request = play.request_for(Play(name=name))
    bound = engine
    bound.claims.claim([request])
    _, claim, _ = bound.claims.begin(
        request, new_token("nobody"), lease=bound.limits.lease, cap=16, gathers=False, published_at=""
    )
    assert claim is not None
    return claim


def state_of(claim: Claim) -> str:
    found = engine.claims.get(claim.key)
    return found.state if found else ""


# --- one at a time ----------------------------------------------------------------------------------------------------
def test_a_tick_does_nothing_while_another_is_under_way(bench: Bench, sweeper: Sweeper) -> None:
    claim = begins()
    bench.jump(11)
    another = bench.claims.lock(LOCK, seconds=10)
    assert another.acquire()
    sweeper.tick()
    assert state_of(claim) == "running"
    another.release()
    sweeper.tick()
    assert state_of(claim) == "waiting"
    assert not bench.client.exists(f"{bench.claims.prefix}:{LOCK}")


def test_a_sweeper_that_stalls_does_no_harm_to_the_next(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nexus().create_namespace("acme")
    claim, next_one = begins(), Sweeper(engine)
    bench.set(play.request_for(Play()), crashes=4)
    bench.jump(11)
    dead_letter = engine.storage.dead_letter

    def stalls(*args: Any) -> None:  # longer than the lock and the burial's lease last
        monkeypatch.setattr(engine.storage, "dead_letter", dead_letter)
        bench.client.delete(f"{bench.claims.prefix}:{LOCK}")
        bench.jump(11)
        next_one.tick()  # buries the claim under its own token
        assert bench.claims.lock(LOCK, seconds=10).acquire(token="a third")
        dead_letter(*args)

    monkeypatch.setattr(engine.storage, "dead_letter", stalls)
    sweeper.tick()
    assert bench.client.get(f"{bench.claims.prefix}:{LOCK}") == "a third"
    assert bench.claims.marker(claim.key) == (claim.job_id, "dead")
    assert [job.id for job in Nexus().jobs(status="dead")] == [claim.job_id]
    assert bench.claims.counts("acme") == {}


def test_a_sweeper_that_is_killed_in_its_tick_blocks_the_others_for_a_moment_only(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_unlock", lambda: None)
    monkeypatch.setattr(sweeper, "_leases", lambda: _raise(SystemExit()))  # as far as anyone else can see, SIGKILL
    with pytest.raises(SystemExit):
        sweeper.tick()
    assert 0 < bench.client.pttl(f"{bench.claims.prefix}:{LOCK}") <= sweeping.LOCK_SECONDS * 1000
    look = sweeping.EVERY * (1 + sweeping.GIVE_OR_TAKE)
    assert engine.limits.lease + sweeping.LOCK_SECONDS + look + sweeping.JITTER + look <= 20
    assert sweeping.GRACE + sweeping.LOCK_SECONDS + look <= 20


def test_a_sweeper_that_returned_jobs_looks_again_when_they_are_due(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0.8 * sweeping.EVERY <= sweeper.next_tick_in <= 1.2 * sweeping.EVERY
    claim = begins()
    bench.jump(11)
    monkeypatch.setattr("random.random", lambda: 0.1)
    sweeper.tick()
    returned = bench.claims.get(claim.key)
    assert returned is not None
    assert returned.due_at is not None
    assert returned.due_at <= bench.claims.now() + sweeper.next_tick_in
    assert sweeper.next_tick_in == pytest.approx(0.1 * sweeping.JITTER)
    bench.jump(sweeper.next_tick_in)
    sweeper.tick()
    assert state_of(claim) == "pending"
    assert sweeper.next_tick_in >= 0.8 * sweeping.EVERY


def test_a_sweeper_that_was_overtaken_in_a_step_leaves_the_rest_to_the_other(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, seen = f"{bench.claims.prefix}:{LOCK}", []

    def stalls() -> None:  # for longer than the lock lasts
        bench.client.set(lock, "another")

    monkeypatch.setattr(sweeper, "_leases", stalls)
    monkeypatch.setattr(sweeper.claims, "queues", lambda: seen.append("queues") or [])
    sweeper.tick()
    assert seen == []
    assert bench.client.get(lock) == "another"
    bench.client.delete(lock)
    monkeypatch.undo()


# --- after Redis was away ---------------------------------------------------------------------------------------------
def quick(deploy: Callable[..., Sandbox]) -> Sweeper:
    deploy(NEXUS_LEASE_SECONDS="0.5")
    made = Sweeper(engine)
    made.tick()
    return made


@pytest.mark.parametrize("how", ["does not answer", "stood still", "was restarted"])
def test_no_lease_is_expired_until_one_lease_after_redis_was_away(deploy: Callable[..., Sandbox], how: str) -> None:
    sweeper, monkeypatch = quick(deploy), pytest.MonkeyPatch()
    claim = begins()
    Bench(engine.claims).jump(1)
    if how == "does not answer":
        monkeypatch.setattr(sweeper, "_has_lock", _away)
        with pytest.raises(QueueUnavailable):
            sweeper.tick()
        monkeypatch.undo()
    elif how == "stood still":
        assert sweeper._answered is not None
        sweeper._answered -= 60
    else:
        monkeypatch.setattr(sweeper.claims, "uptime", lambda: 0.0)
    sweeper.tick()
    monkeypatch.undo()
    assert state_of(claim) == "running"  # its worker could not renew: it has its chance now
    sweeper.tick()
    assert state_of(claim) == "running"
    eventually(lambda: sweeper.tick() or state_of(claim) != "running", within=60)


def _away(*_: object, **__: object) -> bool:
    raise QueueUnavailable


def test_a_tick_that_was_not_ours_is_an_answer_too(deploy: Callable[..., Sandbox]) -> None:
    """Else whoever takes over from a sweeper that was killed in its tick would first wait for a lease."""
    sweeper = quick(deploy)
    killed = sweeper.claims.lock(LOCK, seconds=10)
    assert killed.acquire()
    for _ in range(20):
        assert sweeper._answered is not None
        sweeper._answered -= 2  # a tick's pause
        sweeper.tick()
    killed.release()
    claim = begins()
    Bench(engine.claims).jump(1)
    sweeper.tick()
    assert state_of(claim) != "running"


# --- messages ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hours", [1, 72])
def test_a_clock_that_steps_back_in_a_failover_stalls_nothing(
    bench: Bench, sweeper: Sweeper, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    """The replica's clock is behind: leases, waits, lost messages and the sweep's lock would wait so long."""
    claims, lease = bench.claims, engine.limits.lease
    running = begins("runs")
    play.delay(name="lost")
    play.apply_async(kwargs={"name": "waits"}, countdown=30)
    lose()
    bench.client.set(f"{claims.prefix}:{LOCK}", "a sweeper before the failover", px=hours * 3_600_000)
    bench.jump(-3_600 * hours)
    started = claims.now()
    sweeper.tick()
    assert "The clock of Redis went back" in caplog.text
    assert bench.client.pttl(f"{claims.prefix}:{LOCK}") <= 1_000 * sweeping.LOCK_SECONDS
    bench.client.delete(f"{claims.prefix}:{LOCK}")
    [(_, lease_end)] = bench.client.zrange(f"{claims.prefix}:leases", 0, -1, withscores=True)
    assert lease_end / 1_000 - started <= lease + 1
    [waits] = claims.waiting()
    assert (waits.due_at or 0) - started == pytest.approx(30, abs=2)
    bench.jump(lease + 1)
    sweeper.tick()
    assert holds(1), "the lost message is sent again"
    back = claims.get(running.key)
    assert back, "the worker that is gone"
    assert back.state == "waiting", "has lost its lease"
    caplog.clear()
    sweeper.tick()
    assert "went back" not in caplog.text


def test_a_time_that_the_clock_never_showed_makes_nothing_due(bench: Bench, sweeper: Sweeper) -> None:
    play.apply_async(kwargs={"name": "waits"}, countdown=7_200)
    sweeper.tick()
    bench.client.set(f"{bench.claims.prefix}:clock", int(1_000 * (bench.claims.now() + 86_400 * 400)))
    sweeper.tick()
    [waits] = bench.claims.waiting()
    assert (waits.due_at or 0) - bench.claims.now() == pytest.approx(7_200, abs=5)


def test_a_clock_that_goes_on_moves_nothing(bench: Bench, sweeper: Sweeper) -> None:
    begins("runs")
    play.apply_async(kwargs={"name": "waits"}, countdown=7_200)
    before = bench.content()
    sweeper.tick()
    bench.client.set(f"{bench.claims.prefix}:clock", int(1_000 * bench.claims.now()) + 900)  # as far as slewing goes
    sweeper.tick()
    after = bench.content()
    assert {key: value for key, value in after.items() if "clock" not in key} == {
        key: value for key, value in before.items() if "clock" not in key
    }


def test_a_queue_without_messages_is_empty(sweeper: Sweeper) -> None:
    assert sweeper._empty(["digest", "unheard-of"]) == {"digest", "unheard-of"}
    digest_session.delay(namespace="acme", session_key="s")
    assert sweeper._empty(["derive", "digest"]) == {"derive"}


def test_a_lone_message_that_was_lost_is_sent_again(bench: Bench, sweeper: Sweeper) -> None:
    play.delay()
    lose()
    sweeper.tick()
    assert holds(0)
    bench.jump(11)
    sweeper.tick()
    assert holds(1)
    bench.jump(11)
    sweeper.tick()
    assert holds(1)  # it is in its queue: a backlog is not multiplied


def test_a_job_of_a_queue_that_is_no_more_travels_in_todays(bench: Bench, sweeper: Sweeper) -> None:
    request = play.request_for(Play())
    retired = replace(request, queue="retired")
    bench.claims.claim([retired])
    bench.jump(11)
    sweeper.tick()
    assert holds(1)
    assert begins().job_id == request.id
    bench.audit()


def test_what_is_due_is_published_until_the_broker_fails(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nexus_tasks.idempotency.worker.orphans.AT_ONCE", 10)
    for name in map(str, range(25)):
        play.apply_async(kwargs={"namespace": f"n{name}"}, countdown=60)
    bench.jump(61)
    monkeypatch.setattr(engine.publisher, "publish", lambda wakeups: len(list(wakeups)) - 1)
    sweeper._due()
    assert (len(bench.claims.waiting()), len(bench.claims.pending("maintenance"))) == (15, 10)
    monkeypatch.undo()
    sweeper.tick()
    assert (len(bench.claims.waiting()), len(bench.claims.pending("maintenance"))) == (0, 25)
    assert holds(15)


# --- burials ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def worn_out(bench: Bench) -> Iterator[list[Claim]]:
    """Three jobs whose workers died every time."""
    Nexus().create_namespace("acme")
    claims = [begins(name) for name in "abc"]
    for name in "abc":
        bench.set(play.request_for(Play(name=name)), crashes=4)
    bench.jump(11)
    yield claims
    bench.audit()


def dead_jobs() -> set[str]:
    return {job.id for job in Nexus().jobs(status="dead")}


def test_jobs_that_used_up_their_attempts_are_buried(sweeper: Sweeper, worn_out: list[Claim]) -> None:
    sweeper.tick()
    assert dead_jobs() == {claim.job_id for claim in worn_out}
    assert [state_of(claim) for claim in worn_out] == ["", "", ""]
    assert Reconciler(engine).round() == 0


def test_a_letter_that_cannot_be_written_stops_no_other(
    bench: Bench, sweeper: Sweeper, worn_out: list[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = min(worn_out, key=lambda claim: claim.key)
    dead_letter = engine.storage.dead_letter

    def fails_for_the_first(claim: Claim, error: BaseException | None) -> None:
        if claim.key == first.key:
            raise ValueError("what Postgres cannot hold")
        dead_letter(claim, error)

    monkeypatch.setattr(engine.storage, "dead_letter", fails_for_the_first)
    sweeper.tick()
    assert dead_jobs() == {claim.job_id for claim in worn_out if claim is not first}
    assert state_of(first) == "running"
    monkeypatch.setattr(engine.storage, "dead_letter", dead_letter)
    bench.jump(11)
    sweeper.tick()
    assert dead_jobs() == {claim.job_id for claim in worn_out}
    assert {Nexus().job(claim.job_id).crashes for claim in worn_out} == {5}  # that a letter failed is no crash


def test_a_postgres_that_is_away_is_asked_once_per_tick(
    bench: Bench, sweeper: Sweeper, worn_out: list[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, dead_letter = [], engine.storage.dead_letter

    def away(*args: object) -> None:
        asked.append(args)
        raise Transient("Postgres")

    monkeypatch.setattr(engine.storage, "dead_letter", away)
    play_once.delay()
    lose(1, "reflect")
    bench.jump(11)
    sweeper.tick()
    assert len(asked) == 1
    assert holds(1, "reflect")  # and the tick goes on
    monkeypatch.setattr(engine.storage, "dead_letter", dead_letter)
    bench.jump(11)
    sweeper.tick()
    assert dead_jobs() == {claim.job_id for claim in worn_out}


# --- pauses, reconcile ------------------------------------------------------------------------------------------------
def test_a_pause_is_lifted_when_its_cause_is_gone(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.claims.pause("play", "401")
    play.delay()
    play.apply(kwargs={})
    assert bench.claims.counts("acme") == {"waiting": 1}
    monkeypatch.setattr(engine.storage, "probe", lambda _kind: _raise(Misconfigured("still 401")))
    sweeper.probe()
    assert list(bench.claims.paused()) == ["play"]
    monkeypatch.undo()
    sweeper.tick()
    eventually(lambda: not bench.claims.paused() and bench.claims.counts("acme") == {"pending": 1}, within=60)
    # The thread still sends the message. It must not outlive the connections of the test.
    eventually(lambda: all(thread.name != "nexus-probe" for thread in threading.enumerate()), within=60)


def _raise(error: BaseException) -> None:
    raise error


def test_a_model_that_hangs_does_not_hold_the_sweep_up(
    bench: Bench, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs(_kind: str) -> None:
        asked.set()
        answer.wait(60)

    monkeypatch.setattr(engine.storage, "probe", hangs)
    claim = begins("b")
    bench.claims.pause("play", "401")
    bench.jump(11)
    sweeper.tick()
    assert asked.wait(60)
    assert state_of(claim) == "waiting"
    sweeper.tick()  # the next one too
    answer.set()


def test_what_postgres_wants_is_asked_for_unless_it_has_a_claim(bench: Bench) -> None:
    nexus = Nexus()
    nexus.ingest("acme", "chat", [{"content": f"Fact {i}.", "author": "ann"} for i in range(3)])
    assert sum(bench.claims.counts("acme").values()) == 3
    assert Reconciler(engine).round() == 0
    lose(1, "derive")  # the first takes the others along
    bench.flush()
    assert Reconciler(engine).round() == 3
    assert Reconciler(engine).round() == 0
    assert holds(3, "derive")
    bench.audit()


def test_reconcile_asks_an_absent_broker_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    Nexus().ingest("acme", "chat", [{"content": f"Fact {i}.", "author": "ann"} for i in range(5)])
    bench.flush()
    tried = []

    def fails(wakeup: object, **_: object) -> None:
        tried.append(wakeup)
        raise OperationalError("away")

    monkeypatch.setattr("nexus_tasks.idempotency.producer.publisher.send", lambda _task, wakeup, **_: fails(wakeup))
    # Claims and messages in two steps, as with another broker.
    engine.publisher._templates["derive_memory", "derive"] = None
    assert Reconciler(engine).round() == 5
    assert len(tried) == 1  # each attempt takes a second: hundreds of them would keep the sweep from its work
    assert bench.claims.counts("acme") == {"pending": 5}


def test_the_sweep_starts_when_what_it_needs_comes_up_late(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = 2

    def late() -> Any:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise Transient("Postgres is starting")
        return default_deployment().engine

    play.apply_async(kwargs={}, countdown=60)
    bench.jump(61)
    monkeypatch.setattr("nexus_tasks.idempotency.worker.sweeper.EVERY", 0.02)
    starting = Celery("starting", set_as_current=False)
    attach(starting, late)
    step = SweepStep(None)
    step.start(type("Worker", (), {"app": starting}))
    try:
        eventually(lambda: queued() == 1)
    finally:
        step.stop(None)


def test_a_probe_that_redis_does_not_answer_is_a_warning(
    here: Sandbox,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It runs in a thread, whose error nobody would handle."""

    def away(*_: Any) -> Any:
        raise QueueUnavailable

    engine.claims.pause(play.kind.name, "no key")
    sweeper = Sweeper(engine)
    monkeypatch.setattr(sweeper.claims, "resume", away)
    for step in sweeper._steps():
        step()
    eventually(lambda: "could not be probed" in caplog.text, within=10)
