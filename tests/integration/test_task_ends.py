"""Every way a run may end, and what becomes of its claims: run in this process, as a worker's thread would."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import JobFailed, Permanent, QueueUnavailable, Throttled, Transient
from nexus_tasks.idempotency.claim import Claim, Claimed, Wakeup
from nexus_tasks.idempotency.worker import executor
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from nexus_tasks.types import JobOutcome
from tests.integration.claiming import Bench
from tests.integration.jobkinds import BODIES, Play, attempts, play, play_once, play_together, work
from tests.sandbox import Sandbox, engine, eventually

OK = JobOutcome(status="completed")


@pytest.fixture(autouse=True)
def _namespace(here: Sandbox) -> Iterator[None]:  # noqa: ARG001
    Nexus().create_namespace("acme")
    yield
    BODIES.clear()


@pytest.fixture
def bench(here: Sandbox) -> Bench:  # noqa: ARG001
    return Bench(engine.claims)


def claim_of(name: str = "a", task: Any = play) -> Claim:
    found = engine.claims.get(engine.claims.key(task.kind.request_for(Play(name=name))))
    assert found is not None
    return found


def letters(here: Sandbox) -> list[tuple[Any, ...]]:
    return here.sql("SELECT job_id, error_type, message, errors, crashes FROM dead_letters ORDER BY id")


def due(bench: Bench) -> None:
    """Whatever waits is due now, and pending."""
    bench.jump(400)
    bench.sweep_due()


def times_out(bench: Bench) -> None:
    """The workers of everything that runs are dead, and the sweep has noticed."""
    bench.jump(11)
    bench.sweep_leases()
    due(bench)


def siblings(*names: str) -> list[Play]:
    for name in names:
        play_together.delay(name=name, plan=tuple(n for n in names if n != name))
    return [Play(name=name) for name in names]


# --- by the type of the error -----------------------------------------------------------------------------------------
def test_the_type_of_the_error_decides(here: Sandbox, bench: Bench) -> None:
    table = {
        #                 waits for     seconds     retries errors paused
        "transient": ("retry", (0.0, 2.0), 1, 0, False),
        "throttled": ("throttle", (6.0, 7.0), 0, 0, False),
        "over budget": ("budget", (0.0, 3_600.0), 0, 0, False),
        "wait": ("ripeness", (8.0, 9.0), 0, 0, False),
        "bug": ("retry", (0.0, 2.0), 1, 1, False),
        "misconfigured": ("pause", None, 0, 0, True),
    }
    for word, (reason, seconds, retries, errors, paused) in table.items():
        asked = play.delay(name=word, plan=(word, "ok"))
        [result] = work()
        assert (result["status"], result["job_id"]) == ("superseded", asked.id)
        claim = claim_of(word)
        assert (claim.state, claim.wait_reason, claim.retries, claim.errors) == ("waiting", reason, retries, errors)
        if seconds is None:  # the end of the pause wakes it
            assert claim.due_at is None
        else:
            assert claim.due_at is not None
            assert seconds[0] - 0.5 <= claim.due_at - engine.claims.now() <= seconds[1]
        assert (claim.failing_since is not None) is bool(retries)
        assert ("play" in engine.claims.paused()) is paused
    assert letters(here) == []
    engine.claims.resume("play")
    due(bench)
    assert {result["status"] for result in work()} == {"completed"}
    bench.audit()


def test_a_permanent_error_is_a_dead_letter_at_once(here: Sandbox) -> None:
    asked = play.delay(plan=("permanent",))
    [result] = work()
    assert result["status"] == "dead"
    assert letters(here) == [(asked.id, "Permanent", letters(here)[0][2], 1, 0)]
    assert "never" in letters(here)[0][2]
    with pytest.raises(JobFailed, match="never"):
        asked.wait(60)
    assert engine.claims.counts("acme") == {}


def test_a_dead_letter_keeps_the_beginning_of_a_long_error(here: Sandbox) -> None:
    def quote_everything(*_: object) -> None:
        raise Permanent("never " + "x" * 1_000_000)

    BODIES["a"] = quote_everything
    asked = play.delay()
    work()
    [(message, traceback)] = here.sql("SELECT message, traceback FROM dead_letters")
    assert message.startswith("never x")
    assert len(message) == 10_000
    assert len(traceback) == 100_000
    [listed] = Nexus().jobs(namespace="acme", status="dead")
    assert (listed.id, listed.error) == (asked.id, message)


def test_unknown_errors_end_as_a_dead_letter_after_so_many_attempts(here: Sandbox, bench: Bench) -> None:
    asked = play.delay(plan=("bug",))
    for attempt in range(1, 6):
        assert len(attempts()) == attempt - 1
        work()
        due(bench)
    assert len(attempts()) == 5
    assert letters(here) == [(asked.id, "ZeroDivisionError", "a bug", 5, 0)]
    assert "ZeroDivisionError" in here.sql("SELECT traceback FROM dead_letters")[0][0]
    assert work() == []


def test_passing_errors_end_as_a_dead_letter_after_so_long(here: Sandbox, bench: Bench) -> None:
    play.delay(plan=("transient",))
    for _ in range(6):
        work()
        due(bench)
    assert letters(here) == []
    bench.jump(86_400)
    work()
    assert [letter[1] for letter in letters(here)] == ["Transient"]


def test_a_body_that_returns_no_outcome_is_told_so(bench: Bench) -> None:
    BODIES["a"] = lambda *_: None
    play.delay()
    work()
    assert claim_of().errors == 1
    due(bench)
    BODIES["a"] = lambda *_: OK
    assert work()[0]["status"] == "completed"


class Unreadable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture
def no_log() -> Iterator[None]:
    """Capture no log: pytest cannot send half a surrogate pair from one of its processes to another."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "error",
    [Unreadable(), Wait("odd", math.nan), Wait("odd", 5.0, "a\ud800"), Throttled(retry_after=math.inf)],
    ids=["a text", "seconds", "a detail", "seconds of a server"],
)
@pytest.mark.usefixtures("no_log")
def test_an_error_that_cannot_be_recorded_counts_and_leaves_its_traceback(
    here: Sandbox, bench: Bench, error: Exception
) -> None:
    def ends_badly(*_: Any) -> None:
        raise error

    BODIES["a"] = ends_badly
    play.delay()
    work()
    claim = claim_of()
    assert (claim.state, claim.wait_reason, claim.errors, claim.crashes) == ("waiting", "retry", 1, 0)
    assert type(error).__name__ in claim.error
    for _ in range(4):
        due(bench)
        work()
    [(_, error_type, message, errors, crashes)] = letters(here)
    assert (error_type, errors, crashes) == ("JobError", 5, 0)
    assert f"raised {type(error).__name__}, and its" in message
    [(shown,)] = here.sql("SELECT traceback FROM dead_letters")
    assert "in ends_badly" in shown


@pytest.mark.parametrize("word", ["exit", "interrupt"])
def test_a_body_that_would_end_the_process_counts_as_failed(bench: Bench, word: str) -> None:
    play.delay(plan=(word, "ok"))
    raised: list[BaseException] = []

    def in_a_pool_thread() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=in_a_pool_thread)
    thread.start()
    thread.join()
    assert raised == []  # Celery's thread pool would leak the message
    assert (claim_of().errors, claim_of().wait_reason) == (1, "retry")
    play.delay(name="main", plan=(word, "ok"))
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        work()  # a process that is told to end ends
    assert claim_of("main").errors == 1
    due(bench)
    assert [result["status"] for result in work()] == ["completed", "completed"]


# --- dead letters -----------------------------------------------------------------------------------------------------
def test_every_id_that_was_folded_in_gets_its_letter(here: Sandbox, bench: Bench) -> None:
    first = play.delay(plan=("wait", "permanent"), reason="first")
    BODIES["a"] = lambda *_: (
        folded.append(play.delay(plan=("wait", "permanent"), reason="second")) or _raise(Transient("away"))
    )
    folded: list[Any] = []
    work()
    del BODIES["a"]
    assert [asked.outcome for asked in folded] == [Claimed.RERUN]
    due(bench)
    work()
    assert [letter[0] for letter in letters(here)] == [first.id, folded[0].id]
    for asked in (first, *folded):
        with pytest.raises(JobFailed):
            asked.wait(60)


def _raise(error: BaseException) -> Any:
    raise error


def test_a_run_that_finds_its_letter_only_ends(here: Sandbox, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = play.delay(plan=("permanent",))
    finish = engine.claims.finish
    monkeypatch.setattr(engine.claims, "finish", _away)
    monkeypatch.setattr("nexus_tasks.idempotency.worker.executor._with_patience", lambda _, transition: transition())
    work()  # the letter is committed, then the worker dies
    monkeypatch.setattr(engine.claims, "finish", finish)
    assert len(letters(here)) == 1
    assert claim_of().state == "running"
    times_out(bench)
    [result] = work()
    assert result["status"] == "dead"
    assert len(attempts()) == 1
    assert [letter[0] for letter in letters(here)] == [asked.id]
    assert engine.claims.counts("acme") == {}


def _away(*_: object, **__: object) -> Any:
    raise QueueUnavailable


def test_a_letter_is_found_even_when_redis_forgot_the_job(here: Sandbox, bench: Bench) -> None:
    play.apply_async(kwargs={"plan": ("permanent",)}, task_id="job-1")
    work()
    bench.flush()
    again = play.apply(kwargs={"plan": ("ok",)}, task_id="job-1")  # a message that a broker of its own has kept
    assert again.state == "FAILURE"
    with pytest.raises(JobFailed, match="never"):
        again.get()
    assert len(letters(here)) == 1


def test_a_letter_that_cannot_be_written_now_is_written_later(
    here: Sandbox, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.delay(plan=("permanent",))
    storage = engine.storage
    dead_letter = storage.dead_letter
    monkeypatch.setattr(storage, "dead_letter", lambda *_: _raise(Transient("Postgres is away")))
    work()
    assert (claim_of().wait_reason, claim_of().crashes, claim_of().errors) == ("retry", 0, 0)
    monkeypatch.setattr(storage, "dead_letter", dead_letter)
    due(bench)
    work()
    assert len(letters(here)) == 1
    assert len(attempts()) == 2


def test_a_zombie_writes_no_letter(here: Sandbox, bench: Bench) -> None:
    def frozen(run: Run, _arguments: Play) -> JobOutcome:
        del BODIES["a"]
        times_out(bench)
        assert [result["status"] for result in work()] == ["completed"]  # the other run
        assert not run.lost.is_set()  # it has not heard yet
        raise Permanent("late")

    BODIES["a"] = frozen
    asked = play.delay()
    assert play.apply(kwargs={}, task_id=asked.id).result["status"] == "completed"  # as the other run has ended it
    assert letters(here) == []
    assert asked.wait(60).status == "completed"


# --- batches ----------------------------------------------------------------------------------------------------------
def test_a_batch_that_fails_for_reasons_unknown_takes_no_innocent_along(here: Sandbox, bench: Bench) -> None:
    siblings("a", "b", "c")
    bench.set(play_together.request_for(Play(name="a")), errors=4)  # one more is its last
    bench.set(play_together.request_for(Play(name="b")), errors=1)
    BODIES["a"] = lambda *_: _raise(ZeroDivisionError("a bug"))
    play_together.apply(kwargs={"name": "a", "plan": ("b", "c")}, task_id=claim_of("a", play_together).job_id)
    assert [(letter[1], letter[3]) for letter in letters(here)] == [("ZeroDivisionError", 5)]
    assert [claim_of(name, play_together).errors for name in "bc"] == [2, 1]
    bench.audit()


def test_a_job_that_failed_twice_runs_alone(bench: Bench) -> None:
    alone: dict[str, bool] = {}

    def body(run: Run, arguments: Play) -> JobOutcome:
        alone[arguments.name] = run.isolated
        return OK

    for name, history in {"a": {"errors": 2}, "b": {"crashes": 2}, "c": {"errors": 1}, "d": {}}.items():
        BODIES[name] = body
        play.delay(name=name)
        if history:
            bench.set(play.request_for(Play(name=name)), **history)
    work()
    assert alone == {"a": True, "b": True, "c": False, "d": False}


def test_a_run_that_lost_one_claim_gives_the_others_back(bench: Bench) -> None:
    siblings("a", "b", "c")
    taken = []

    def body(run: Run, _arguments: Play) -> JobOutcome:
        taken.extend(claim.args["name"] for claim in run.claims)
        bench.claims.drop(run.claims[1].key)  # an operator, an erasure
        run.lost.set()  # and the heartbeat hears of it
        run.check()
        return OK

    BODIES["a"] = body
    play_together.apply(kwargs={"name": "a", "plan": ("b", "c")}, task_id=claim_of("a", play_together).job_id)
    assert taken == ["a", "b", "c"]
    for name in "ac":
        claim = claim_of(name, play_together)
        assert (claim.state, claim.crashes, claim.errors, claim.retries) == ("waiting", 0, 0, 0)
    assert bench.claims.counts("acme") == {"waiting": 2}
    due(bench)
    BODIES.clear()
    work()
    assert bench.claims.counts("acme") == {}
    bench.audit()


@pytest.mark.parametrize("ends", [1, 3])
def test_what_ended_before_the_run_raised_stays_ended(here: Sandbox, bench: Bench, ends: int) -> None:
    siblings("a", "b", "c")

    def body(run: Run, _arguments: Play) -> JobOutcome:
        run.part_done(run.claims[:ends], OK)
        raise ZeroDivisionError

    BODIES["a"] = body
    play_together.apply(kwargs={"name": "a", "plan": ("b", "c")}, task_id=claim_of("a", play_together).job_id)
    assert bench.claims.counts("acme") == ({"waiting": 2} if ends == 1 else {})
    assert letters(here) == []
    bench.audit()


def test_a_job_that_gets_no_process_of_its_own_waits_for_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    request = play.request_for(Play())
    bench.claims.claim([request])
    bench.set(request, crashes=2)
    monkeypatch.setattr(engine.isolation, "_start", lambda: _raise(OSError("no memory")))
    executor.execute(engine, play.kind, request, published_at="", eager=False)
    claim = claim_of()
    assert (claim.state, claim.wait_reason, claim.crashes, claim.errors) == ("waiting", "retry", 2, 0)
    assert attempts() == []


# --- when Redis is away -----------------------------------------------------------------------------------------------
def test_a_job_that_cannot_begin_is_left_to_the_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = play.delay()
    monkeypatch.setattr(engine.claims, "begin", _away)
    assert play.apply(kwargs={}, task_id=asked.id).state == "IGNORED"  # acknowledged, nothing ran
    monkeypatch.undo()
    assert claim_of().state == "pending"
    bench.jump(11)
    [wakeup] = bench.sweep_lost()
    assert wakeup.job_id == asked.id


def test_an_end_waits_for_a_redis_that_restarts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, fails = engine.claims.finish, 2

    def restarting(claims: Sequence[Claim], statuses: Sequence[str], **options: Any) -> list[Wakeup]:
        nonlocal fails
        fails -= 1
        return _away() if fails >= 0 else finish(claims, statuses, **options)

    monkeypatch.setattr(engine.claims, "finish", restarting)
    play.delay()
    assert work()[0]["status"] == "completed"
    assert bench.claims.counts("acme") == {}
    assert fails == -1


def test_an_end_that_is_never_recorded_is_found_by_the_next_run(
    deploy: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(NEXUS_LEASE_SECONDS="0.3")
    asked = play.delay()
    monkeypatch.setattr(engine.claims, "finish", _away)
    assert work()[0]["status"] == "completed"
    monkeypatch.undo()
    assert claim_of().state == "running"
    sweeper = Sweeper(engine)
    eventually(lambda: sweeper.tick() or claim_of().state == "pending", within=60)
    assert claim_of().crashes == 1
    work()
    assert asked.wait(60).status == "completed"


# --- waiting for a job ------------------------------------------------------------------------------------------------
def test_merged_callers_wait_for_the_same_job() -> None:
    first, second = play.delay(reason="first"), play.delay(reason="second")
    assert (second.outcome, second.id, second.created) == (Claimed.MERGED, first.id, False)
    work()
    assert first.wait(60).job_id == second.wait(60).job_id == first.id
    once = play_once.delay()
    work()
    again = play_once.delay()
    assert (again.outcome, again.id) == (Claimed.DONE, once.id)
    assert again.wait(60).status == "completed"


def test_a_rerun_is_waited_for_by_its_own_id() -> None:
    asked: list[Any] = []

    def body(*_: Any) -> JobOutcome:
        asked.extend(play.delay(reason=reason) for reason in ("x", "y"))
        BODIES.clear()
        return OK

    BODIES["a"] = body
    first = play.delay()
    work()
    assert [(one.outcome, one.created) for one in asked] == [(Claimed.RERUN, True), (Claimed.RERUN, False)]
    assert asked[0].id == asked[1].id != first.id
    assert asked[0].poll() is None
    work()
    assert asked[0].wait(60).job_id == asked[0].id
    assert first.wait(60).status == "completed"
    assert [reasons for _, reasons in attempts()] == ["", "x,y"]


def test_a_rerun_that_was_folded_in_is_waited_for_too(bench: Bench) -> None:
    asked: list[Any] = []

    def body(*_: Any) -> JobOutcome:
        asked.append(play.delay(reason="x"))
        BODIES.clear()
        raise Transient("away")

    BODIES["a"] = body
    first = play.delay(reason="first")
    work()
    assert first.poll() is None
    assert asked[0].poll() is None
    due(bench)
    work()
    assert first.wait(60).status == asked[0].wait(60).status == "completed"
    assert [reasons for _, reasons in attempts()] == ["first", "first,x"]


def test_a_dropped_job_has_ended(bench: Bench) -> None:
    asked = play.delay()
    bench.claims.drop(claim_of().key)
    assert asked.wait(60).status == "dropped"


def test_the_job_that_stands_for_a_request_may_have_ended_just_now() -> None:
    asked = play.delay()
    request = replace(play.request_for(Play()), id="another")
    assert play.existing_result(request).id == asked.id
    work()
    assert play.existing_result(request).id == asked.id
    assert play.existing_result(request).wait(60).status == "completed"
