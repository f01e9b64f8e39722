"""What has crashed twice runs in a process of its own, and all that its run was begun with goes along."""

from __future__ import annotations

import os
import socket

import pytest
from celery.signals import worker_process_init

from nexus_tasks import Nexus
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.worker import executor, isolation
from tests.broker import holds, lose
from tests.integration.claiming import Bench, waited_for
from tests.integration.jobkinds import Play, attempts, play
from tests.sandbox import Sandbox, app, engine


@pytest.fixture
def _fork_server(here: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deployment's fork server has died. The one that takes its place knows the tests' kinds."""
    ours, theirs = socket.socketpair()
    theirs.close()
    monkeypatch.setattr(here.deployment.isolation, "_line", isolation.ForkServerLine(ours, lambda: -9))
    monkeypatch.setitem(app.conf, "include", ["tests.integration.jobkinds"])


@pytest.mark.usefixtures("_fork_server")
def test_a_canvas_delivery_that_runs_apart_is_completed_by_its_own_message() -> None:
    Nexus().create_namespace("acme")
    asked = play.apply_async(kwargs={}, ignore_result=False)
    lose()
    request = waited_for(play.request_for(Play(), job_id=asked.id))
    bench = Bench(engine.claims)
    bench.set(request, crashes=2)
    outcome = executor.execute(engine, play.kind, request, published_at="", eager=False).outcome
    assert (outcome.status, outcome.job_id) == ("completed", asked.id)
    [(pid, _)] = attempts()
    assert pid != os.getpid()
    assert holds(0), "whoever works on the delivery needs no second message to complete it"
    assert bench.claims.delivery_outcome(asked.id, queue=request.queue) == ("completed", asked.id)
    bench.audit()


@pytest.mark.usefixtures("_fork_server")
def test_a_job_that_no_other_process_can_run_stops_no_other_job_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_path() -> list[str]:
        raise ConfigurationError("The Celery application is not a global variable of a module.")

    monkeypatch.setattr(engine.isolation, "_command", no_path)
    Nexus().create_namespace("acme")
    request = waited_for(play.request_for(Play()))
    bench = Bench(engine.claims)
    bench.set(request, crashes=2)
    executor.execute(engine, play.kind, request, published_at="", eager=False)
    assert engine.claims.paused() == {}
    [claim] = bench.claims.waiting()
    assert (claim.wait_reason, claim.errors) == ("retry", 1), "it becomes a dead letter in the end"


def test_a_child_of_a_prefork_pool_is_a_process_of_its_own_already(
    here: Sandbox,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation, "_in_pool_child", True)
    request = waited_for(play.request_for(Play()))
    bench = Bench(engine.claims)
    bench.set(request, crashes=2)
    assert executor.execute(engine, play.kind, request, published_at="", eager=False).outcome.status == "completed"
    assert [pid for pid, _ in attempts()] == [os.getpid()]


@pytest.mark.usefixtures("_fork_server")
@pytest.mark.long
def test_a_solo_pool_does_not_run_a_poisonous_job_in_the_worker_itself() -> None:
    worker_process_init.send(sender=None)  # as Celery does in the worker's own process when its pool is solo
    request = waited_for(play.request_for(Play()))
    bench = Bench(engine.claims)
    bench.set(request, crashes=2)
    assert executor.execute(engine, play.kind, request, published_at="", eager=False).outcome.status == "completed"
    [(pid, _)] = attempts()
    assert pid != os.getpid()
