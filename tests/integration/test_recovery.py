"""Recovery on one machine: what a dead process held is given back at once, and every claim names its worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Worker
from tests.integration.claiming import LEASE, Bench, new_bench

ANN = Worker(node="celery@ann", host="ann", pid=7)


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def worker_of(bench: Bench, name: str) -> Worker | None:
    claim = bench.claims.get(bench.key(bench.request(name)))
    return claim.worker if claim else None


def test_a_claim_names_the_worker_of_its_run_also_while_it_waits_for_the_next(bench: Bench) -> None:
    bench.claims.claim([bench.request("a"), bench.request("b")])
    begun, lead = bench.claims.begin(
        bench.request("a"), "t1", lease=LEASE, cap=16, gathers=True, published_at="", worker=ANN
    )
    assert begun is Begun.RUN
    assert lead is not None
    assert lead.worker == ANN
    assert str(ANN) == "celery@ann (process 7)"
    taken = bench.claims.take(lead, [bench.request("b")], lease=LEASE) or []
    assert [claim.worker for claim in taken] == [ANN]

    bench.flush()
    assert bench.claims.renew([lead, *taken], lease=LEASE) == []
    assert worker_of(bench, "a") == worker_of(bench, "b") == ANN

    bench.claims.wait([lead, *taken], "retry", 2.0, retry=True)
    assert worker_of(bench, "a") == worker_of(bench, "b") == ANN


def test_a_claim_of_the_release_before_names_no_worker(bench: Bench) -> None:
    assert bench.run(bench.request("a")).worker is None
    bench.client.hdel(bench.key(bench.request("a")), "worker")
    assert worker_of(bench, "a") is None
