"""What has crashed twice runs in a process of its own, and all that its run was begun with goes along."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nexus_tasks import Nexus
from nexus_tasks.celery import app
from nexus_tasks.idempotency import apart
from nexus_tasks.idempotency import work as worker
from nexus_tasks.idempotency.binding import binding
from tests.broker import holds, lose
from tests.deployment import Deployment
from tests.integration.claiming import Bench, waited_for
from tests.integration.jobkinds import Play, attempts, play


@pytest.fixture
def _spare(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    """A process of this test's own, which knows the tests' kinds; it ends with the test."""
    monkeypatch.setattr(apart, "_spare", None)
    monkeypatch.setitem(app.conf, "include", ["tests.integration.jobkinds"])
    yield
    if apart._spare:
        apart._spare[1].kill()
        apart._spare[1].communicate()


@pytest.mark.usefixtures("_spare")
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
