"""Claims that workers of another release do not understand: they wait, and a worker that understands wakes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun
from tests.integration.claiming import AHEAD, Bench, new_bench


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def understood(bench: Bench, dialect: str, kind: str = "thing") -> list[str]:
    """What a worker with this dialect wakes."""
    return [str(w.args["name"]) for some in bench.claims.understood({kind: dialect}) for w in some]


def test_a_claim_that_a_worker_does_not_understand_waits_however_long(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    bench.claims.leave_to_others(bench.key(asked), "old")
    bench.jump(30 * 86_400)
    assert bench.sweep_due() == []
    assert bench.sweep_lost() == []
    assert understood(bench, "old") == []
    assert understood(bench, "new", kind="other") == []
    assert understood(bench, "new") == ["a"]
    run = bench.run(asked, claim=False)
    assert (run.crashes, run.errors, run.retries) == (0, 0, 0)


def test_a_claim_that_several_do_not_understand_goes_back_and_forth_between_none_of_them(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    bench.claims.leave_to_others(bench.key(asked), "old")
    assert understood(bench, "older") == ["a"]
    bench.claims.leave_to_others(bench.key(asked), "older")
    bench.claims.leave_to_others(bench.key(asked), "older")  # a second message of it
    assert understood(bench, "old") == understood(bench, "older") == []
    assert understood(bench, "new") == ["a"]


def test_a_run_that_cannot_read_its_arguments_leaves_the_job_to_others(bench: Bench) -> None:
    run = bench.run(bench.request())
    bench.claims.wait([run], "version", 0.0, detail="old")
    assert bench.sweep_due() == []
    assert understood(bench, "new") == ["a"]


def test_a_claim_of_a_newer_version_is_left_to_a_worker_of_that_version(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    bench.set(asked, version=99)
    begun, _, _ = bench.claims.begin(asked, "t1", lease=10.0, cap=16, gathers=False, published_at="", dialect="1.x")
    assert begun is Begun.EARLY
    assert understood(bench, "1.x") == []
    assert understood(bench, "99.x") == ["a"]


def test_many_claims_that_are_not_understood_leave_the_line_one_by_one_and_join_it_again(bench: Bench) -> None:
    requests = [bench.request(f"a{n:02}") for n in range(30)]
    bench.claims.claim(requests)
    left = 0
    while pending := bench.claims.pending("maintenance"):
        for claim in pending:
            bench.claims.leave_to_others(claim.key, "-")
            left += 1
    assert left == 30
    assert bench.claims.counts("acme") == {"waiting": 30}
    assert len(bench.claims.waiting()) == 30
    assert len(understood(bench, "new")) == AHEAD
    assert bench.claims.counts("acme") == {"waiting": 30 - AHEAD, "pending": AHEAD}
    assert not bench.client.exists(f"{bench.claims.prefix}:versions")


@pytest.mark.parametrize("state", ["running", "absent", "backs off"])
def test_a_stray_message_that_is_not_understood_changes_nothing(bench: Bench, state: str) -> None:
    asked = bench.request()
    if state != "absent":
        run = bench.run(asked)
        if state == "backs off":
            bench.claims.wait([run], "retry", 60.0)
    before = bench.content()
    assert bench.claims.leave_to_others(bench.key(asked), "old") == []
    assert bench.content() == before
