"""Canvases without a worker process: eagerly, and under Celery's own pytest fixtures."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import _state, chain, chord, group
from celery.contrib.testing import tasks as _ping  # noqa: F401 - start_worker waits for its task
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from celery.signals import setup_logging

from nexus_tasks import Nexus
from nexus_tasks.errors import JobFailed, WaitTimeout
from nexus_tasks.idempotency.worker.run import Run, Wait
from tests.integration.jobkinds import BODIES, Play, attempts, heard, note, play, play_once
from tests.sandbox import Sandbox, app, engine

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.usefixtures("eager")
def test_canvases_run_on_the_spot_when_everything_is_eager() -> None:
    chord([play.si(name="x"), play.si(name="x"), play_once.si(name="y")], note.s(name="body")).apply_async()
    [[results]] = heard("body")
    assert [result["status"] for result in results] == ["completed"] * 3
    chain(play_once.si(name="y"), play.si(name="z"), note.s(name="end")).apply_async()
    assert len(heard("end")) == len(attempts("y")) == len(attempts("z")) == 1
    play.apply_async(kwargs={"name": "l"}, link=note.si(name="linked"))
    assert len(heard("linked")) == 1
    assert len(group(play.si(name=name) for name in "ab").apply_async().get()) == 2
    assert play.apply_async(kwargs={"name": "later"}, countdown=3_600).wait(5).status == "completed"


@pytest.mark.usefixtures("eager")
def test_a_chain_that_is_eager_stops_at_a_dead_step() -> None:
    with pytest.raises(JobFailed):  # as Celery does when it is eager
        chain(play.si(name="x", plan=("permanent",)), note.si(name="end")).apply_async()
    assert heard("end") == []


@pytest.fixture
def as_before() -> Iterator[None]:
    """Celery's plugin makes the application the process's own, and its logging too: other tests have neither."""

    def left_alone(**_: object) -> None:
        """Whoever listens has set up logging."""

    setup_logging.connect(left_alone)
    current, default = _state._tls.current_app, _state.default_app
    yield
    setup_logging.disconnect(left_alone)
    _state._set_current_app(current)
    _state.set_default_app(default)


@pytest.mark.usefixtures("as_before")
def test_jobs_run_in_the_worker_of_celerys_pytest_plugin(here: Sandbox) -> None:
    name = f"{here.name}{uuid.uuid4().hex}"
    with start_worker(app, pool="solo", ping_task_timeout=60.0, shutdown_timeout=60.0):  # what `celery_worker` does
        assert play.delay(name=name).wait(60).status == "completed"
    assert len(attempts(name)) == 1
    running = {thread.name for thread in threading.enumerate()}
    assert not running & {"nexus-sweep", "nexus-buffer"}, "they end with the worker, not with the process"


# --- what an eager job that has not ended answers ---------------------------------------------------------------------
def _paused() -> Any:
    engine.claims.pause(play.kind.name, "no key")
    return play.delay()


def _run_elsewhere() -> Any:
    request = play.request_for(Play())
    engine.claims.claim([request])
    engine.claims.begin(request, "elsewhere", lease=60.0, cap=16, gathers=False, published_at="")
    return play.delay()


def _dropped() -> Any:
    def drop_and_commit(run: Run, _arguments: Any) -> None:
        Nexus().drop_job(run.primary.job_id)
        run.check()

    BODIES["a"] = drop_and_commit
    return play.delay()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("ask", "state", "error"),
    [
        (_paused, "RETRY", WaitTimeout),
        (_run_elsewhere, "IGNORED", WaitTimeout),
        (_dropped, "REVOKED", TaskRevokedError),
        (lambda: play.apply(kwargs={"plan": ("wait",)}), "FAILURE", Wait),
    ],
    ids=["paused", "run elsewhere", "dropped", "waits"],
)
def test_an_eager_job_without_an_outcome_has_its_state_and_its_get_raises(
    ask: Callable[[], Any], state: str, error: type[Exception]
) -> None:
    Nexus().create_namespace("acme")
    try:
        asked = ask()
        assert asked.state == state
        assert not asked.successful()
        with pytest.raises(error):
            asked.get(timeout=5)
        assert isinstance(asked.get(timeout=5, propagate=False), error)
    finally:
        BODIES.clear()


def test_apply_of_a_job_that_waits_says_so() -> None:
    engine.claims.pause(play.kind.name, "no key")
    ran = play.apply()
    assert ran.state == "RETRY"
    with pytest.raises(WaitTimeout, match="pause"):
        ran.get()
