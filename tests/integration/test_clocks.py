"""Machines whose clocks are days wrong, among others: what is due, lost or given up goes by the time of Redis."""

from __future__ import annotations

import time

import pytest

from nexus_tasks import Nexus
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Claimed
from tests.deployment import Deployment
from tests.integration.claiming import Bench
from tests.integration.jobkinds import Play, attempts, play, work

DAY = 86_400.0

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.parametrize("wrong", [-2 * DAY, 2 * DAY], ids=["late", "early"]),
]


@pytest.fixture
def bench(here: Deployment) -> Bench:  # noqa: ARG001
    Nexus().create_namespace("acme")
    return Bench(binding().claims)


def clock_is(patch: pytest.MonkeyPatch, wrong: float) -> None:
    """From now on this process is a machine whose clock is wrong by so many seconds."""
    right = time.time
    patch.setattr(time, "time", lambda: right() + wrong)


def test_producers_whose_clocks_disagree_mean_the_same_moments(bench: Bench, wrong: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock_is(patch, wrong)
        play.apply_async(kwargs={"name": "later"}, countdown=3_600)
        play.delay(name="now")
    assert play.apply_async(kwargs={"name": "later"}, countdown=7_200).outcome is Claimed.MERGED
    bench.jump(3_000)
    assert bench.claims.sweep_due(10) == []
    now = bench.claims.get(bench.claims.key(play.request_for(Play(name="now"))))
    assert now is not None
    assert now.state == "pending"
    assert abs(bench.claims.now() - now.enqueued_at) < DAY / 2
    bench.jump(700)
    [due] = bench.claims.sweep_due(10)
    assert due.args["name"] == "later"
    work()
    assert len(attempts("now")) == len(attempts("later")) == 1


def test_a_worker_whose_clock_is_wrong_gives_nothing_up_too_early(
    here: Deployment, bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    play.delay(plan=("transient", "transient", "ok"))
    work()
    clock_is(monkeypatch, wrong)
    for _ in range(2):
        bench.jump(600)
        assert len(bench.claims.sweep_due(10)) == 1
        work()
    assert len(attempts()) == 3
    assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]
    assert bench.claims.counts("acme") == {}
