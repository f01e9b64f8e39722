"""What has crashed twice runs in a process of its own, and all that its run was begun with goes along."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from nexus_tasks import Nexus
from nexus_tasks.celery import app
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.worker import executor as worker
from nexus_tasks.idempotency.worker import isolation
from tests.broker import holds, lose
from tests.deployment import Deployment
from tests.integration.claiming import Bench, waited_for
from tests.integration.jobkinds import Play, attempts, play


@pytest.fixture
def _nursery(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    """A nursery of this test's own, in place of one that has died; it knows the tests' kinds."""
    ours, theirs = socket.socketpair()
    theirs.close()
    monkeypatch.setattr(isolation, "_nursery", isolation._Nursery(ours, lambda: -9))
    monkeypatch.setitem(app.conf, "include", ["tests.integration.jobkinds"])
    yield
    if isolation._nursery:
        assert isolation._nursery.end() == 0


@pytest.mark.usefixtures("_nursery")
def test_a_canvas_delivery_that_runs_apart_is_completed_by_its_own_message() -> None:
    Nexus().create_namespace("acme")
    asked = play.apply_async(kwargs={}, ignore_result=False)
    lose()
    request = waited_for(play.request_for(Play(), job_id=asked.id))
    bench = Bench(binding().claims)
    bench.set(request, crashes=2)
    outcome = worker.work(play, request, published_at="", eager=False)
    assert (outcome.status, outcome.job_id) == ("completed", asked.id)
    [(pid, _)] = attempts()
    assert pid != os.getpid()
    assert holds(0), "whoever works on the delivery needs no second message to complete it"
    assert bench.claims.answer(asked.id, queue=request.queue) == ("completed", asked.id)
    bench.audit()


def test_a_child_of_a_prefork_pool_is_a_process_of_its_own_already(
    here: Deployment,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation, "_alone", True)
    request = waited_for(play.request_for(Play()))
    bench = Bench(binding().claims)
    bench.set(request, crashes=2)
    assert worker.work(play, request, published_at="", eager=False).status == "completed"
    assert [pid for pid, _ in attempts()] == [os.getpid()]
