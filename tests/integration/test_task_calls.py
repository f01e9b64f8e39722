"""What a producer's call of a job does: what it accepts, what it refuses, and what it returns."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from nexus_tasks import Nexus, derive_memory
from nexus_tasks.deployment import use
from nexus_tasks.errors import ConfigurationError, InvalidInput, JobFailed, UnsupportedOption, WaitTimeout
from nexus_tasks.idempotency.claim import Claim, Claimed
from nexus_tasks.idempotency.worker.run import Run, Superseded
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from nexus_tasks.types import JobOutcome
from tests.broker import holds, queued, take
from tests.integration.claiming import Bench
from tests.integration.jobkinds import BODIES, attempts, play, play_nowhere, play_once, work
from tests.sandbox import Sandbox, engine

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def _no_bodies() -> Iterator[None]:
    yield
    BODIES.clear()


def claims_of(name: str = "a") -> list[Claim]:
    bound = engine
    found = [*bound.claims.waiting(), *bound.claims.running()]
    found += [claim for queue in bound.claims.queues() for claim in bound.claims.pending(queue)]
    return [claim for claim in found if claim.args["name"] == name]


# --- when -------------------------------------------------------------------------------------------------------------
def test_countdown_and_eta_become_the_claims_due_time() -> None:
    now, minute = datetime.now(UTC), timedelta(seconds=60)
    calls: list[tuple[dict[str, Any], float]] = [
        ({"countdown": 60}, 60),
        ({"countdown": 2.5}, 2.5),
        ({"eta": now + minute}, 60),
        ({"eta": (now + minute).astimezone(timezone(timedelta(hours=5)))}, 60),
        ({"eta": (now + minute).replace(tzinfo=None)}, 60),  # naive means UTC
        ({"eta": now - minute}, 0),
        ({"countdown": -5}, 0),
        ({"countdown": 0}, 0),
        ({}, 0),
    ]
    for i, (options, seconds) in enumerate(calls):
        play.apply_async(kwargs={"name": str(i)}, **options)
        [claim] = claims_of(str(i))
        if seconds:
            assert (claim.state, claim.wait_reason) == ("waiting", "delay")
            assert claim.due_at == pytest.approx(now.timestamp() + seconds, abs=1.5)
        else:
            assert claim.state == "pending"
    assert holds(4)  # the delay is the claim's, no message waits in a worker


# --- what is refused --------------------------------------------------------------------------------------------------
def test_options_that_fight_with_claims_are_refused() -> None:
    for option in ("expires", "time_limit", "soft_time_limit", "priority", "queue", "exchange", "routing_key"):
        with pytest.raises(UnsupportedOption, match=option):
            play.apply_async(kwargs={}, **{option: 5})
        with pytest.raises(UnsupportedOption, match=option):
            play.s().set(**{option: 5}).apply_async()
        play.apply_async(kwargs={"name": option}, **{option: None})
        assert len(claims_of(option)) == 1
    assert claims_of() == []


def test_celerys_own_retry_is_refused() -> None:
    with pytest.raises(UnsupportedOption, match="its type decides"):
        play.retry(countdown=5)


def test_wrong_arguments_queue_nothing() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("acme", "a", ("ok",), "", None, 0.5, "one too many"), {}, "at most 6"),
        (("acme",), {"namespace": "acme"}, "namespace is given twice"),
        ((), {"name": 5}, "name"),
        ((), {"colour": "red"}, "colour"),
        ((), {"plan": ["a list is no tuple"]}, "plan"),
    ]
    for args, kwargs, named in calls:
        with pytest.raises(InvalidInput, match=named):
            play.apply_async(args, kwargs)
    for task_id in ("two words", "a,b", "line\nbreak", ""):  # a claim could not hold them
        with pytest.raises(InvalidInput, match="task_id"):
            play.apply_async(kwargs={}, task_id=task_id)
    assert engine.claims.counts("acme") == {}


def test_a_kind_whose_queue_nobody_reads_is_refused_before_it_claims() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        play_nowhere.delay()
    assert engine.claims.counts("acme") == {}


# --- what arrives -----------------------------------------------------------------------------------------------------
def test_arguments_may_be_positional() -> None:
    assert play.delay("acme", "a").id == play.delay(name="a", namespace="acme").id == play.delay("acme").id


def test_the_callers_own_id_becomes_the_jobs() -> None:
    assert play.apply_async(kwargs={}, task_id="mine-1").id == "mine-1"
    [claim] = claims_of()
    assert claim.job_id == "mine-1"
    assert take(1)[0].headers["id"] == "mine-1"


def test_the_worker_gets_what_the_producer_gave() -> None:
    arrived = []
    BODIES["cafe\u0301"] = lambda run, arguments: arrived.append((run.flags, arguments))
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    asked = play.kind.parse((), {"name": "cafe\u0301", "plan": ("x", "y"), "at": at, "share": 0.25, "reason": "forced"})
    play.delay(**asked.model_dump())
    work()
    [(flags, arguments)] = arrived
    assert arguments == asked  # the scope is normalised, the arguments are not
    assert (flags.force, flags.reasons, flags.urgency) == (True, ("forced",), "live")
    [claim] = claims_of("cafe\u0301")
    assert play.delay(name="caf\u00e9").id == claim.job_id  # the same work, spelt otherwise
    assert [one.job_id for one in claims_of("caf\u00e9")] == [claim.job_id], "the newest request gives the arguments"


def test_a_default_for_several_is_one_job_each_and_one_result() -> None:
    nexus = Nexus()
    nexus.create_namespace("acme", observers=["ann", "bob"])
    nexus.ingest("acme", "chat", [{"content": "I live in Rome.", "author": "eve"}], observers=["ann"])
    [memory] = nexus.session("acme", "chat").said
    result = derive_memory.apply_async(kwargs={"namespace": "acme", "memory_id": memory.id}, task_id="first")
    assert [part.created for part in result.parts] == [True]
    assert result.created
    bound = engine
    by_observer = {claim.args["observer"]: claim.job_id for claim in bound.claims.pending("derive")}
    assert set(by_observer) == {"ann", "bob"}
    assert {result.job_id, *(part.job_id for part in result.parts)} == set(by_observer.values())
    assert result.id == "first"  # Celery's own result, and what a revoke goes by
    with pytest.raises(WaitTimeout):
        result.wait(0.01)
    derive_memory.apply(kwargs={"namespace": "acme", "memory_id": memory.id, "observer": "ann"})
    with pytest.raises(WaitTimeout):
        result.wait(0.01)
    derive_memory.apply(kwargs={"namespace": "acme", "memory_id": memory.id, "observer": "bob"})
    assert result.wait(60).status == "completed"


def test_get_does_not_wait_for_a_result_that_nobody_stores() -> None:
    assert play.delay().get(timeout=60) is None


# --- publishing -------------------------------------------------------------------------------------------------------
@pytest.fixture
def no_broker(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Celery's broker does not answer, the claims' Redis does; called, the broker is back."""
    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setenv("NEXUS_BROKER_URL", "redis://127.0.0.1:1/0")
            stack.enter_context(here.another())
        yield lambda: stack.enter_context(use(here.deployment)) and None


def test_a_message_that_cannot_be_sent_is_no_error_and_the_sweep_sends_it(
    here: Sandbox, no_broker: Callable[[], None]
) -> None:
    first, second = play.delay(), play_once.delay()
    assert first.outcome is second.outcome is Claimed.ENQUEUED
    sweeper = Sweeper(engine)
    Bench(engine.claims).jump(11)
    sweeper.tick()
    assert [claim.state for claim in claims_of()] == ["pending", "pending"]  # it asked in vain, and lost nothing
    no_broker()
    assert queued() == queued("reflect") == 0
    sweeper.tick()
    assert [message.headers["id"] for message in take(1)] == [first.id]
    assert [message.headers["id"] for message in take(1, "reflect")] == [second.id]
    assert here.redis().hget(claims_of()[0].key, "crashes") is None


def test_one_attempt_at_an_absent_broker_is_enough(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing() as (port, tried):
        monkeypatch.setenv("NEXUS_BROKER_URL", f"redis://127.0.0.1:{port}/0")
        with here.another():
            play.enqueue([play.request_for(play.kind.parse((), {"namespace": f"n{i}"})) for i in range(100)])
            assert len(engine.claims.pending("maintenance")) == 100
    assert 1 <= len(tried) <= 10, "each attempt may take a second: a hundred would keep the producer for minutes"


@contextmanager
def refusing() -> Iterator[tuple[int, list[object]]]:
    """A server that hangs up on everybody; its port, and the calls it had."""
    calls, server = list[object](), socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                connection, caller = server.accept()
                calls.append(caller)
                connection.close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    yield server.getsockname()[1], calls
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


# --- eager ------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("eager")
def test_eager_jobs_run_at_once_under_their_claim() -> None:
    result = play.delay()
    assert result.wait(60).status == "completed"
    assert len(attempts()) == 1
    assert (play_once.delay().wait(60).status, play_once.delay().outcome) == ("completed", Claimed.DONE)
    assert queued() == 0


@pytest.mark.usefixtures("eager")
def test_eager_jobs_fail_as_others_do() -> None:
    Nexus().create_namespace("acme")
    with pytest.raises(JobFailed, match="never"):
        play.delay(plan=("permanent",)).wait(60)
    retried = play.delay(name="b", plan=("bug", "ok"))
    [claim] = claims_of("b")
    assert (claim.wait_reason, claim.errors, claim.job_id) == ("retry", 1, retried.id)


@pytest.mark.usefixtures("eager")
def test_a_rerun_that_was_asked_for_eagerly_runs_after_the_first() -> None:
    def ask_once_more(*_: Any) -> JobOutcome:
        if len(attempts()) == 1:
            assert play.delay(reason="again").outcome is Claimed.RERUN
        return JobOutcome(status="completed")

    BODIES["a"] = ask_once_more
    play.delay(reason="first")
    assert [reasons for _, reasons in attempts()] == ["first", "again"]


# --- a run that has lost its claim ------------------------------------------------------------------------------------
def test_a_run_whose_job_was_dropped_commits_nothing_even_before_the_heartbeat_notices() -> None:
    seen = []

    def drop_and_commit(run: Run, _arguments: Any) -> JobOutcome:
        run.check()
        Nexus().drop_job(run.primary.job_id)
        try:
            run.check()
        except Superseded:
            seen.append("superseded")
            raise
        return JobOutcome(status="completed")

    BODIES["a"] = drop_and_commit
    play.delay(name="a")
    work()
    assert seen == ["superseded"]


@pytest.mark.parametrize("task_id", ["nul\x00", "escape\x1b", "half \ud800", "two words", "a,b", "next\x85"])
def test_an_id_that_postgres_or_a_terminal_cannot_take_is_refused(task_id: str) -> None:
    with pytest.raises(InvalidInput, match="is no job id"):
        play.apply_async(kwargs={"name": "a"}, task_id=task_id)
    assert queued() == 0
