"""Batches: which siblings a run takes along, and how each of their claims ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claim
from nexus_tasks.idempotency.request import Flags
from tests.integration.claiming import LEASE, Bench, new_bench, scope_of, tagged


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def take(bench: Bench, lead: Claim, *names: str, again: bool = False) -> Sequence[str] | None:
    """Take the claims of these names; the names of those that came along."""
    taken = bench.take(lead, [bench.request(name) for name in names], company="ripeness", again=again)
    return None if taken is None else [scope_of(claim) for claim in taken]


def waiting_for(bench: Bench, name: str, reason: str) -> None:
    bench.claims.wait([bench.run(bench.request(name), f"t-{name}")], reason, 60.0)


def test_a_run_takes_what_is_pending(bench: Bench) -> None:
    bench.claims.claim([bench.request("b", force=True, reasons=("x",)), bench.request("c")])
    lead = bench.run(bench.request("a"))
    taken = bench.take(lead, [bench.request("b"), bench.request("c")])
    assert taken is not None
    assert [scope_of(claim) for claim in taken] == ["b", "c"]
    assert taken[0].flags == Flags(force=True, reasons=("x",))
    assert {claim.token for claim in taken} == {lead.token}
    assert bench.begin(bench.request("b"), "t2") == (Begun.SUPERSEDED, None)
    assert bench.claims.counts("acme") == {"running": 3, "slots": 1}  # a batch counts once
    bench.claims.finish([lead, *taken], ["completed", "completed", "dead"])
    assert bench.claims.counts("acme") == {}
    assert bench.claims.marker(taken[1].key) == (taken[1].job_id, "dead")


@pytest.mark.parametrize(
    ("reason", "comes_along"),
    [
        ("ripeness", True),
        ("concurrency", True),
        ("retry", False),
        ("throttle", False),
        ("budget", False),
        ("pause", False),
        ("delay", False),
    ],
)
def test_a_sibling_that_waits_comes_along_only_when_it_waits_for_company_or_a_slot(
    bench: Bench, reason: str, comes_along: bool
) -> None:
    waiting_for(bench, "b", reason)
    lead = bench.run(bench.request("a"))
    assert take(bench, lead, "b") == (["b"] if comes_along else [])
    if not comes_along:  # but the members of a batch that was cut off do, whatever they wait for
        assert take(bench, lead, "b", again=True) == ["b"]


def test_what_is_done_or_dropped_stays_so(bench: Bench) -> None:
    bench.claims.finish([bench.run(bench.request("b"))], ["completed"])
    bench.claims.drop(bench.run(bench.request("c")).key)
    assert take(bench, bench.run(bench.request("a"), "t2"), "b", "c", again=True) == []


def test_a_sibling_that_redis_lost_is_made_again(bench: Bench) -> None:
    lead = bench.run(bench.request("a"))
    taken = bench.take(lead, [bench.request("b", reasons=("x",))])
    assert taken is not None
    assert [(scope_of(claim), claim.flags.reasons) for claim in taken] == [("b", ("x",))]


@pytest.mark.parametrize(("crashes", "errors"), [(2, 0), (0, 2), (1, 1)])
@pytest.mark.parametrize("again", [False, True])
def test_a_sibling_that_failed_twice_is_left_out(bench: Bench, crashes: int, errors: int, again: bool) -> None:
    bench.claims.claim([bench.request("b"), bench.request("c")])
    bench.set(bench.request("b"), crashes=crashes, errors=errors)
    bench.set(bench.request("c"), crashes=1)
    assert take(bench, bench.run(bench.request("a")), "b", "c", again=again) == ["c"]


def test_a_sibling_of_a_newer_release_is_left_to_it(bench: Bench) -> None:
    bench.claims.claim([bench.request("b")])
    bench.set(bench.request("b"), version=99)
    assert take(bench, bench.run(bench.request("a")), "b") == []


def test_a_sibling_that_runs_elsewhere_is_left_alone(bench: Bench) -> None:
    other = bench.run(bench.request("b"), "t1")
    assert take(bench, bench.run(bench.request("a"), "t2"), "b", again=True) == []
    assert bench.fields(bench.request("b"))["token"] == other.token


def test_two_runs_that_start_together_become_one(bench: Bench) -> None:
    asked = bench.request("b", reasons=("x",))
    loser = bench.run(asked, "t1", gathers=True)
    bench.claims.claim([tagged(asked, "later")])  # a rerun that was asked for comes along
    winner = bench.run(bench.request("a"), "t2", gathers=True)
    assert take(bench, winner, "b") == ["b"]
    [taken] = [claim for claim in bench.claims.running() if scope_of(claim) == "b"]
    assert (taken.token, taken.flags.reasons) == (winner.token, ("x",))
    assert bench.claims.counts("acme") == {"running": 2, "slots": 1}

    before = bench.content()
    assert take(bench, loser, "a") is None
    assert bench.claims.finish([loser], ["completed"]) == []
    assert bench.claims.wait([loser], "ripeness", 1.0) == []
    assert bench.content() == before
    [wakeup] = bench.claims.finish([winner, taken], ["completed", "completed"])
    assert bench.run(asked, "t3", claim=False).job_id == wakeup.job_id != asked.id


def test_a_run_that_has_gathered_is_no_longer_taken(bench: Bench) -> None:
    first = bench.run(bench.request("a"), "t1", gathers=True)
    assert take(bench, first) == []
    assert take(bench, bench.run(bench.request("b"), "t2", gathers=True), "a") == []


def test_the_slot_of_a_run_that_was_taken_goes_to_the_next_in_line(bench: Bench) -> None:
    bench.run(bench.request("a"), "t1", gathers=True)
    bench.run(bench.request("b"), "t2", gathers=True)
    for since, name in enumerate(("c", "d"), start=1):
        bench.claims.claim([bench.request(name)])
        bench.set(bench.request(name), enqueued_at=since)  # or both are asked for in one millisecond
        assert bench.begin(bench.request(name), f"t-{name}", cap=2)[0] is Begun.EARLY
    [lead] = [claim for claim in bench.claims.running() if scope_of(claim) == "a"]
    assert take(bench, lead, "b") == ["b"]
    assert [wakeup.args["name"] for wakeup in bench.woken] == ["c"]


def test_a_batch_waits_together_and_each_claim_counts_for_itself(bench: Bench) -> None:
    bench.claims.claim([bench.request("b")])
    bench.set(bench.request("b"), retries=3, errors=1)
    lead = bench.run(bench.request("a"))
    taken = bench.take(lead, [bench.request("b")])
    assert taken is not None
    bench.claims.wait([lead, *taken], "retry", 30.0, retry=True, error=True)
    a, b = bench.fields(bench.request("a")), bench.fields(bench.request("b"))
    assert (a["retries"], a["errors"], b["retries"], b["errors"]) == ("1", "1", "4", "2")
    assert a["due_at"] == b["due_at"]
    assert bench.claims.counts("acme") == {"waiting": 2}


def test_a_claim_of_a_batch_that_was_dropped_ends_without_the_others(bench: Bench) -> None:
    bench.claims.claim([bench.request("b")])
    lead = bench.run(bench.request("a"))
    taken = bench.take(lead, [bench.request("b")])
    assert taken is not None
    bench.claims.drop(taken[0].key)
    assert bench.claims.renew([lead, *taken], lease=LEASE) == taken
    bench.claims.finish([lead, *taken], ["completed", "completed"])
    assert bench.claims.marker(lead.key) == (lead.job_id, "completed")
    assert bench.claims.marker(taken[0].key) == (taken[0].job_id, "dropped")
