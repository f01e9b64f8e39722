"""Celery's habits in a producer and at a worker's start: what works as for any task, and what is refused and why."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import chain
from celery.concurrency.prefork import TaskPool as ProcessPool
from celery.concurrency.thread import TaskPool
from celery.exceptions import TaskRevokedError, TimeoutError
from celery.result import EagerResult
from celery.worker import state

from nexus_tasks import Nexus
from nexus_tasks.errors import ConfigurationError, InvalidInput, JobFailed, NotFound, UnsupportedOption
from nexus_tasks.idempotency.celery_patches.thread_pool import answer_honestly
from nexus_tasks.idempotency.producer.message_options import RESERVED_HEADERS
from nexus_tasks.idempotency.worker.ending import _Ending
from nexus_tasks.worker import _refuse_green_threads, _refuse_growing_threads
from tests.integration.jobkinds import Play, attempts, play, play_kept, work
from tests.sandbox import Sandbox, app, engine

pytestmark = pytest.mark.usefixtures("here")
ROOT = Path(__file__).parents[2]


# --- results ----------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("eager")
def test_an_eager_call_has_celerys_result() -> None:
    asked: Any = play.delay()
    assert isinstance(asked, EagerResult)
    assert (asked.get(timeout=5)["status"], asked.state, asked.created) == ("completed", "SUCCESS", True)
    failed = play.delay(name="b", plan=("bug",))
    assert failed.state == "FAILURE"
    with pytest.raises(ZeroDivisionError):
        failed.get(timeout=5)
    with pytest.raises(JobFailed, match="never"):
        play.delay(name="c", plan=("permanent",)).get(timeout=5)


def test_apply_runs_the_job_here_and_raises_with_throw() -> None:
    ran = play.apply(kwargs={"name": "a"})
    assert isinstance(ran, EagerResult)
    assert ran.get()["status"] == "completed"
    with pytest.raises(ZeroDivisionError):
        play.apply(kwargs={"name": "b", "plan": ("bug",)}, throw=True)


def test_a_result_known_by_its_id_alone_is_read_from_the_run_row() -> None:
    Nexus().create_namespace("acme")
    asked = play_kept.delay()
    for by_id in (play_kept.AsyncResult(asked.id), app.AsyncResult(asked.id)):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="no run row"):
            by_id.get(timeout=0.2)
        assert time.monotonic() - began < 5
    work()
    assert play_kept.AsyncResult(asked.id).get(timeout=5)["answer"] == 42
    dead = play_kept.delay(name="b", plan=("permanent",))
    work()
    with pytest.raises(JobFailed, match="Permanent: never"):
        play_kept.AsyncResult(dead.id).get(timeout=5)


def test_a_result_of_a_job_that_left_nothing_says_so_at_once() -> None:
    """Forgotten, or of a kind without run rows: neither leaves an outcome under its id."""
    client = Nexus()
    client.create_namespace("acme")
    forgotten = play_kept.apply_async(kwargs={"name": "later"}, countdown=300)
    waited_for = app.AsyncResult(forgotten.id)
    with pytest.raises(TimeoutError):
        waited_for.get(timeout=0.1)
    client.forget("acme", everything=True)
    done = play.delay(name="norow")
    work()
    by_id = [play_kept.AsyncResult(job_id) for job_id in (forgotten.id, done.id)]
    for result in (waited_for, *by_id):
        with pytest.raises(NotFound, match="not queued any more"):
            result.get(timeout=5)


def test_a_result_of_a_dropped_job_or_rerun_raises() -> None:
    client = Nexus()
    client.create_namespace("acme")
    running = play_kept.delay(name="held")
    engine.claims.begin(play_kept.request_for(Play(name="held")), "t", lease=60, cap=8, gathers=False, published_at="")
    rerun = play_kept.delay(name="held")
    client.drop_job(running.job_id)
    for job_id in (running.job_id, rerun.job_id):
        with pytest.raises(TaskRevokedError):
            play_kept.AsyncResult(job_id).get(timeout=5)
        assert isinstance(play_kept.AsyncResult(job_id).get(timeout=5, propagate=False), TaskRevokedError)


def test_a_job_that_ends_before_the_look_at_its_claim_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Nexus().create_namespace("acme")
    result = play_kept.AsyncResult(play_kept.delay().id)
    monkeypatch.setattr(result, "_claim", lambda: work() and None)
    assert result.get(timeout=5)["answer"] == 42


def test_a_job_without_a_run_row_that_ends_during_the_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Nexus().create_namespace("acme")
    asked = play.delay()
    result = play.AsyncResult(asked.id)
    claims = iter([result._claim()])
    monkeypatch.setattr(result, "_claim", lambda: (next(claims, None), work())[0])
    assert result.get(timeout=5) == {"status": "completed", "job_id": asked.id, "reasons": []}


def test_a_later_step_of_a_chain_is_waited_for() -> None:
    Nexus().create_namespace("acme")
    steps = chain(play_kept.si(name="one"), play_kept.si(name="two"))()
    with pytest.raises(TimeoutError):
        steps.get(timeout=0.2)
    with pytest.raises(TimeoutError):
        app.AsyncResult(steps.id).get(timeout=0.2)


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"headers": {name: "x"}}, name) for name in ("task", "id", "eta", "expires", "nexus", "compression")),
        ({"headers": "x"}, "mapping"),
        ({"headers": {1: "x"}}, "texts"),
        ({"headers": {"mine": object()}}, "JSON"),
        ({"compression": "x"}, "gzip"),
        ({"compression": ["gzip"]}, "gzip"),
        *(({"countdown": value}, "countdown") for value in (math.inf, math.nan, 1e300, 10**400, "5", True, [])),
        *(({"eta": value}, "eta") for value in (datetime.max, 5, "soon")),
    ],
)
def test_an_option_that_would_make_a_wrong_message_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises((InvalidInput, UnsupportedOption), match=named) as refused:
        play.apply_async(kwargs={}, **options)
    assert refused.value.remedy
    assert engine.claims.counts("acme") == {}


def test_a_message_may_be_compressed_and_have_headers_of_the_callers_own() -> None:
    for name, options in {
        "a": {"compression": "gzip"},
        "b": {"headers": {"mine": [1]}},
        "c": {"countdown": -1},
    }.items():
        assert play.apply_async(kwargs={"name": name}, **options).created
    for name, eta in {"d": datetime.min, "e": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}.items():
        assert play.apply_async(kwargs={"name": name}, eta=eta).created
    assert engine.claims.counts("acme") == {"pending": 5}


def test_every_header_of_celery_is_reserved() -> None:
    """Celery takes stamps from callers."""
    written = set(app.amqp.as_task_v2("id", "task").headers) - {"stamped_headers", "stamps"}
    assert written == RESERVED_HEADERS - {"nexus", "compression"}


def test_what_no_worker_could_do_is_refused_in_the_producer() -> None:
    for serializer in ("pickle", "yaml"):
        with pytest.raises(UnsupportedOption, match=f"{serializer}.*json"):
            play.apply_async(kwargs={}, serializer=serializer)
    for refused in (lambda: play.chunks([("acme",)], 1), lambda: play.map(["a"]), lambda: play.starmap([("a",)])):
        with pytest.raises(UnsupportedOption, match="enqueue_many"):
            refused()
    assert engine.claims.counts("acme") == {}
    assert attempts() == []


def test_a_time_limit_by_remote_control_is_refused() -> None:
    task = app.tasks["nexus_tasks.play"]  # Celery's command sets the attributes of the task
    for name in ("time_limit", "soft_time_limit"):
        with pytest.raises(UnsupportedOption, match="run_limit"):
            setattr(task, name, 5)


def test_a_pool_of_threads_says_why_it_cannot_grow_or_terminate() -> None:
    answer_honestly()
    pool = TaskPool(1)
    for command in (lambda: pool.grow(1), lambda: pool.shrink(1), lambda: pool.terminate_job(1, "TERM")):
        with pytest.raises(NotImplementedError, match="thread"):
            command()


@pytest.mark.parametrize("name", ["gevent", "eventlet"])
def test_a_pool_of_green_threads_is_refused_with_the_reason(name: str) -> None:
    pool = type("TaskPool", (), {"__module__": f"celery.concurrency.{name}"})
    with pytest.raises(ConfigurationError, match=f"{name}.*heartbeat"):
        _refuse_green_threads(pool)
    _refuse_green_threads(TaskPool)


def test_autoscale_is_refused_for_a_pool_that_cannot_grow() -> None:
    worker = SimpleNamespace(autoscale=(4, 1), pool_cls=TaskPool)
    with pytest.raises(ConfigurationError, match="processes"):
        _refuse_growing_threads(worker)
    _refuse_growing_threads(SimpleNamespace(autoscale=(4, 1), pool_cls=ProcessPool))
    _refuse_growing_threads(SimpleNamespace(autoscale=None, pool_cls=TaskPool))


def test_a_worker_whose_pool_has_shrunk_to_no_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """``celery worker --pool processes --autoscale 4`` starts with no process."""
    monkeypatch.setattr(state, "should_stop", None)
    worker = SimpleNamespace(app=app, hostname="w", pool=SimpleNamespace(num_processes=0))
    _Ending(worker)._report_held_threads()
    assert state.should_stop is None


# --- the shipped celeryconfig.py --------------------------------------------------------------------------------------
@pytest.mark.long
def test_celerys_report_works_with_the_shipped_settings(here: Sandbox) -> None:
    shutil.copy(ROOT / "celeryconfig.py", here.folder)
    command = [sys.executable, "-m", "celery", "-A", "nexus_tasks", "report"]
    said = subprocess.run(
        command,
        env={**here.environment, "PYTHONPATH": str(ROOT)},
        cwd=here.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "worker_pool: 'threads'" in said.stdout
