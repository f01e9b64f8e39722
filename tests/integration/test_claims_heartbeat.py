"""The heartbeat: what it holds lives, what it lost it says, and nothing stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker.heartbeat import Heartbeat
from nexus_tasks.idempotency.worker.run import Run
from tests.integration.claiming import Bench, new_bench
from tests.sandbox import eventually

QUICK = 0.3  # a lease, seconds
Hearts = Callable[..., Heartbeat]


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


@pytest.fixture
def hearts(bench: Bench) -> Iterator[Hearts]:
    """Start heartbeats: ``hearts(lease=0.3)``."""
    started: list[Heartbeat] = []

    def start(lease: float = QUICK) -> Heartbeat:
        started.append(Heartbeat(bench.claims, lease))
        return started[-1]

    yield start
    for heart in started:
        heart.stop()


def run_of(bench: Bench, heart: Heartbeat, *claims: Claim) -> Run:
    return Run(
        deployment=None,
        store=bench.claims,
        heartbeat=heart,
        lease=QUICK,
        claims=list(claims),
        requests=[],
        settle=lambda *_: None,
        publish=lambda _: None,
    )


def lease_of(bench: Bench, claim: Claim) -> float:
    return float(bench.client.hget(claim.key, "lease_until") or 0)


def test_what_it_holds_lives_until_it_lets_go(bench: Bench, hearts: Hearts) -> None:
    claim = bench.run(bench.request())
    heart = hearts()
    run = run_of(bench, heart, claim)
    before = lease_of(bench, claim)
    run.hold([claim])
    eventually(lambda: lease_of(bench, claim) not in (0, before), within=60)
    heart.let_go([claim])
    last = lease_of(bench, claim)
    other = bench.run(bench.request("b"), "t2")
    run_of(bench, heart, other).hold([other])
    before = lease_of(bench, other)
    eventually(lambda: lease_of(bench, other) != before, within=60)
    assert lease_of(bench, claim) == last
    assert not run.lost.is_set()


def test_a_lost_claim_stops_its_run_and_no_other(bench: Bench, hearts: Hearts) -> None:
    mine, other = bench.run(bench.request("a"), "t1"), bench.run(bench.request("b"), "t2")
    heart = hearts()
    run, innocent = run_of(bench, heart, mine), run_of(bench, heart, other)
    run.hold([mine])
    innocent.hold([other])
    bench.claims.drop(mine.key)
    assert run.lost.wait(60)
    assert not innocent.lost.is_set()


@pytest.mark.parametrize("error", [QueueUnavailable("away"), RuntimeError("nobody thought of this")])
def test_no_error_ends_it(bench: Bench, hearts: Hearts, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    renew, failures = bench.claims.renew, [error, error]

    def failing(claims: Sequence[Claim], *, lease: float) -> list[Claim]:
        if failures:
            raise failures.pop()
        return renew(claims, lease=lease)

    monkeypatch.setattr(bench.claims, "renew", failing)
    claim = bench.run(bench.request())
    before = lease_of(bench, claim)
    run_of(bench, hearts(), claim).hold([claim])
    eventually(lambda: lease_of(bench, claim) != before, within=60)
    assert failures == []


def test_a_part_that_ends_during_a_renewal_does_not_stop_the_rest(bench: Bench, hearts: Hearts) -> None:
    lead = bench.run(bench.request("a"))
    [sibling] = bench.take(lead, [bench.request("b")]) or []
    heart = hearts(60.0)
    run = run_of(bench, heart, lead, sibling)
    run.hold([lead, sibling])
    run.claims = [lead]  # as `part_done` does, before it ends the sibling's run
    bench.claims.finish([sibling], ["completed"])
    heart._renew()
    assert not run.lost.is_set()


def test_many_runs_come_and_go_while_it_renews(bench: Bench, hearts: Hearts) -> None:
    heart = hearts(0.003)

    def come_and_go(i: int) -> bool:
        claim = bench.run(bench.request(f"n{i}"), f"t{i}", cap=99)
        run = run_of(bench, heart, claim)
        run.hold([claim])
        for j in range(10):
            taken = bench.take(claim, [bench.request(f"n{i}-{j}")]) or []
            run.claims = [*run.claims, *taken]
            run.hold(taken)
        stopped = run.lost.is_set()
        heart.let_go(run.claims)
        bench.claims.finish(run.claims, ["completed"] * len(run.claims))
        return stopped

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(come_and_go, range(8)))
    assert bench.claims.counts("acme") == {}
