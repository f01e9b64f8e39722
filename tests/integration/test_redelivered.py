"""A message that comes back at any time after its job has ended does nothing: Postgres knows that the job has ended.

kombu redelivers what a worker took and did not acknowledge after 3,600 s. Redis' own memory of a job ends after 900 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nexus_tasks import Nexus, digest_session
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.request import Delivery
from nexus_tasks.idempotency.worker.executor import execute
from nexus_tasks.types import JobOutcome
from tests.integration.claiming import Bench
from tests.integration.inline import NAMESPACE, pending, say, work
from tests.sandbox import Sandbox, engine

ARGS = {"namespace": NAMESPACE, "session_key": "chat", "reason": "manual_rebuild"}


@pytest.fixture
def here(here: Sandbox) -> Sandbox:
    """A session that is derived and digested."""
    say(*(f"I have {n} cats." for n in range(10)))
    work()
    return here


def ask() -> Claim:
    """Ask for a rebuild of the digest by a message of its own; returns the job's claim."""
    digest_session.delay(**ARGS)
    [claim] = pending()
    return claim


def deliver(claim: Claim, **options: Any) -> JobOutcome:
    """A worker receives the job's message."""
    kind = engine.kind(claim.kind)
    request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
    return execute(engine, kind, request, published_at="1", eager=False, **options).outcome


def forget(here: Sandbox) -> None:
    """The done markers of all jobs expire."""
    for key in here.redis().scan_iter(f"{here.name}:done:*"):
        here.redis().delete(key)


def generation(here: Sandbox) -> int:
    """How often the digest was rebuilt."""
    [(found,)] = here.sql("SELECT digest_generation FROM sessions")
    return int(found)


def test_a_forced_digest_whose_message_comes_back_an_hour_later_is_not_made_and_paid_again(here: Sandbox) -> None:
    claim = ask()
    assert deliver(claim).status == "completed"
    assert generation(here) == 1
    forget(here)
    assert deliver(claim).status == "completed"  # what its run row says
    assert generation(here) == 1
    assert engine.claims.get(claim.key) is None
    assert digest_session.delay(**ARGS).created  # a new request is a new job
    assert deliver(pending()[0]).status == "completed"
    assert generation(here) == 2


def test_a_worker_that_dies_between_its_commit_and_the_end_of_its_claim_leaves_nothing_to_do_again(
    here: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = ask()
    with monkeypatch.context() as dies:
        dies.setattr("nexus_tasks.idempotency.worker.executor._finish", lambda *_args, **_options: None)
        deliver(claim)
    assert generation(here) == 1
    here.redis().zadd(f"{here.name}:leases", {claim.key: 0})
    engine.claims.sweep_leases(500, attempts=5, token="sweep", lease=10.0, due_in=0.0)
    engine.claims.sweep_due(500)
    assert deliver(claim).status == "completed"
    assert generation(here) == 1
    assert engine.claims.get(claim.key) is None


def test_a_dropped_job_stays_dropped_after_its_marker(here: Sandbox) -> None:
    claim = ask()
    Nexus().drop_job(claim.job_id)
    forget(here)
    assert deliver(claim).status == "dropped"
    assert generation(here) == 0


@pytest.mark.parametrize("then", ["open", "dropped", "retried"])
def test_a_dead_letter_is_the_end_of_its_message(here: Sandbox, then: str) -> None:
    claim = ask()
    kind = engine.kind(claim.kind)
    begun = Bench(engine.claims).run(kind.request_for(kind.load(claim.args)), claim=False)
    engine.storage.dead_letter(begun, ValueError("no paper"))
    engine.claims.finish([begun], ["dead"])
    if then == "dropped":
        Nexus().drop_job(claim.job_id)
    if then == "retried":
        Nexus().retry_job(claim.job_id)
        [again] = pending()
        deliver(again)
    before = generation(here)
    forget(here)
    assert (deliver(claim).status in ("dead", "dropped")) is (then != "retried")
    assert generation(here) == before


def test_a_canvas_message_whose_work_another_job_has_done_does_nothing_when_it_comes_back(here: Sandbox) -> None:
    claim = ask()
    kind = engine.kind(claim.kind)
    request = kind.request_for(kind.load(claim.args), job_id="canvas-1")
    asked_at = str(int(engine.claims.now() * 1000))
    assert deliver(claim).status == "completed"
    forget(here)
    late = replace(request, delivery=Delivery(id="canvas-1", options="{}"))
    assert execute(engine, kind, late, published_at=asked_at, eager=False).outcome.status == "completed"
    assert generation(here) == 1
