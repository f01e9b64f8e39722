"""What the sweep and the heartbeat do to claims: leases that ran out, messages that were lost, a flushed Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun
from nexus_tasks.idempotency.request import Flags
from tests.integration.claiming import ATTEMPTS, GRACE, LEASE, LONGEST, Bench, new_bench, tagged


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def delivered(bench: Bench) -> None:
    """A worker begins a job whose message was published just now."""
    bench.run(bench.request("later"), "later", published_at=str(int(bench.claims.now() * 1000)))


# --- leases -----------------------------------------------------------------------------------------------------------
def test_a_lease_lasts_and_a_renewed_one_lasts_again(bench: Bench) -> None:
    run = bench.run(bench.request())
    bench.jump(LEASE - 1)
    assert bench.sweep_leases() == (0, [], [])
    assert bench.claims.renew([run], lease=LEASE) == []
    bench.jump(LEASE - 1)
    assert bench.sweep_leases() == (0, [], [])
    bench.jump(2)
    assert bench.sweep_leases() == (1, [], [])


def test_a_crash_counts_and_everything_asked_for_is_served_by_one_later_run(bench: Bench) -> None:
    first = bench.request(reasons=("first",))
    bench.run(first)
    second = tagged(first, "second", force=True)
    bench.claims.claim([second])
    bench.jump(LEASE + 1)
    bench.sweep_leases()
    claim = bench.fields(first)
    assert (claim["state"], claim["wait_reason"], claim["crashes"]) == ("waiting", "crash", "1")
    assert len(bench.sweep_due()) == 1
    again = bench.run(first, "t2", claim=False)
    assert (again.job_id, again.also, again.crashes) == (first.id, (second.id,), 1)
    assert again.flags == Flags(force=True, reasons=("first", "second"))
    assert bench.claims.finish([again], ["completed"]) == []


def test_a_job_that_used_up_its_attempts_is_taken_over_by_the_sweep(bench: Bench) -> None:
    first = bench.request(reasons=("first",))
    bench.claims.claim([first])
    bench.set(first, errors=1)
    for crash in range(1, ATTEMPTS - 1):
        bench.run(first, f"t{crash}", claim=False)
        bench.jump(LEASE + 1)
        assert bench.sweep_leases()[0] == 1
        bench.sweep_due()
    bench.run(first, "last", claim=False)
    second = tagged(first, "second")
    bench.claims.claim([second])
    bench.jump(LEASE + 1)
    returned, [dead], _ = bench.sweep_leases("sweep-1")
    assert (returned, dead.token, dead.crashes, dead.errors) == (0, "sweep-1", ATTEMPTS - 1, 1)
    assert (dead.job_id, dead.also) == (first.id, ())
    assert bench.begin(first, "worker") == (Begun.SUPERSEDED, None)
    assert bench.claims.counts("acme") == {"running": 1}  # a burial is no run: it takes nobody's slot
    [wakeup] = bench.claims.finish([dead], ["dead"])
    assert wakeup.job_id == second.id
    again = bench.run(first, "t9", claim=False)
    assert (again.crashes, again.errors, again.flags.reasons) == (0, 0, ("second",))


def test_a_burial_that_was_cut_off_is_taken_up_and_counts_no_further_crash(bench: Bench) -> None:
    asked = bench.request()
    bench.run(asked)
    bench.set(asked, crashes=ATTEMPTS - 1)
    for sweeper in ("sweep-1", "sweep-2", "sweep-3"):
        bench.jump(LEASE + 1)
        _, [dead], _ = bench.sweep_leases(sweeper)
        assert (dead.token, dead.crashes) == (sweeper, ATTEMPTS)
    bench.claims.finish([dead], ["dead"])
    assert bench.claims.marker(dead.key) == (asked.id, "dead")


def test_a_look_at_leases_is_bounded(bench: Bench) -> None:
    for name in "abc":
        bench.run(bench.request(name), f"t-{name}")
    bench.jump(LEASE + 1)
    counts = [
        bench.claims.sweep_leases(2, attempts=ATTEMPTS, token="sweep", lease=LEASE, due_in=2.0)[0] for _ in range(3)
    ]
    assert counts == [2, 1, 0]
    assert bench.sweep_due() == []  # due at a random moment within two seconds, here the last
    bench.jump(2)
    assert bench.claims.sweep_due(2)[0] == 2
    assert bench.claims.sweep_due(2)[0] == 1


# --- messages ---------------------------------------------------------------------------------------------------------
def test_a_message_is_lost_when_it_is_old_and_its_queue_is_empty(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    assert bench.sweep_lost() == []
    bench.jump(GRACE - 1)
    assert bench.sweep_lost() == []
    bench.jump(2)
    assert bench.sweep_lost(empty=False) == []
    assert bench.sweep_lost("derive") == []
    [wakeup] = bench.sweep_lost()
    assert wakeup.job_id == asked.id
    assert bench.sweep_lost() == []


def test_a_message_is_lost_when_its_queue_has_delivered_a_later_one(bench: Bench) -> None:
    bench.claims.claim([bench.request("a")])
    bench.jump(GRACE + 1)
    bench.claims.claim([bench.request("behind")])
    assert bench.sweep_lost(empty=False) == []
    delivered(bench)
    [wakeup] = bench.sweep_lost(empty=False)
    assert wakeup.args["name"] == "a"  # the other one is not old enough to be missed


def test_a_backlog_is_never_multiplied(bench: Bench) -> None:
    bench.claims.claim([bench.request(str(i)) for i in range(50)])
    oldest = bench.fields(bench.request("0"))["published_at"]
    bench.jump(3_600)
    bench.run(bench.request("0"), claim=False, published_at=str(int(oldest) - 3_600_000))
    assert bench.sweep_lost(empty=False) == []


def test_nothing_is_lost_because_a_clock_was_set_back(bench: Bench) -> None:
    bench.claims.claim([bench.request("a")])
    delivered(bench)
    bench.client.incrby(f"{bench.claims.prefix}:delivered:maintenance", 3_600_000)
    bench.jump(GRACE + 1)
    assert bench.sweep_lost(empty=False) == []


def test_the_grace_doubles_and_a_message_that_never_arrives_is_no_crash(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    for grace in (10, 20, 40, 80, 160, 320, LONGEST, LONGEST, LONGEST):
        bench.jump(grace - 1)
        assert bench.sweep_lost() == []
        bench.jump(2)
        [wakeup] = bench.sweep_lost()
        assert wakeup.job_id == asked.id
    run = bench.run(asked, claim=False)
    assert (run.crashes, run.errors) == (0, 0)


def test_messages_that_never_arrive_hold_up_no_line(bench: Bench) -> None:
    bench.claims.claim([bench.request(f"job-{n:02}") for n in range(20)])
    assert len(bench.sweep_lost(limit=100)) == 0
    for grace, sent in ((10, 8), (20, 8 + 8)):
        bench.jump(grace + 1)
        assert len(bench.sweep_lost(limit=100)) == sent, "the second time as many others go on"
    bench.audit()
    bench.jump(11)
    assert len(bench.sweep_lost(limit=100)) == 8, "those others are lost too; the first have a longer grace"


def test_a_message_is_sent_again_early_only_once(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    bench.jump(4)
    assert bench.sweep_lost() == []
    assert len(bench.sweep_lost(age=3.0)) == 1
    bench.jump(30)
    assert bench.sweep_lost(age=3.0) == [], "a message that kills its worker would kill one every few seconds"
    assert len(bench.sweep_lost()) == 1
    bench.audit()


def test_a_message_that_arrived_starts_the_grace_anew(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    for grace in (10, 20, 40):
        bench.jump(grace + 1)
        bench.sweep_lost()
    bench.claims.pause("thing", "401")
    assert bench.begin(asked, "t1")[0] is Begun.EARLY  # whoever got it lives
    bench.claims.resume("thing")
    bench.jump(GRACE + 1)
    assert len(bench.sweep_lost()) == 1


def test_claims_whose_grace_has_grown_do_not_stand_before_newly_lost_ones(bench: Bench) -> None:
    bench.claims.claim([bench.request(f"old-{i}") for i in range(7)])
    for grace in (10, 20):
        bench.jump(grace + 1)
        assert len(bench.sweep_lost(limit=7)) == 7
    bench.claims.claim([bench.request("new")])
    bench.jump(GRACE + 1)
    assert [w.args["name"] for w in bench.sweep_lost(limit=7)] == ["new"]


# --- a Redis that forgot ----------------------------------------------------------------------------------------------
def test_the_heartbeat_makes_a_flushed_claim_again_as_it_was(bench: Bench) -> None:
    first = bench.request(reasons=("first",), force=True)
    run = bench.run(first)
    bench.claims.claim([tagged(first, "second")])
    bench.claims.wait([run], "retry", 0.0, retry=True, error=True)
    bench.sweep_due()
    bench.set(first, crashes=1)
    run = bench.run(first, "t2", claim=False)
    [sibling] = bench.take(run, [bench.request("b")]) or []
    bench.flush()
    assert bench.claims.renew([run, sibling], lease=LEASE) == []
    assert bench.claims.counts("acme") == {"running": 2, "slots": 1}
    assert bench.begin(first, "t3") == (Begun.SUPERSEDED, None)
    bench.jump(LEASE + 1)
    bench.sweep_leases()
    bench.sweep_due()
    again = bench.run(first, "t4", claim=False)
    assert (again.job_id, again.also, again.flags) == (run.job_id, run.also, run.flags)
    assert (again.errors, again.crashes, again.retries) == (1, 2, 1)
    assert again.failing_since == pytest.approx(run.failing_since, abs=LEASE + 2)


def test_the_heartbeat_makes_no_claim_again_that_somebody_else_has(bench: Bench) -> None:
    asked = bench.request()
    run = bench.run(asked)
    bench.flush()
    bench.run(asked, "t2")
    before = bench.content()
    assert bench.claims.renew([run], lease=LEASE) == [run]
    assert bench.content() == before
    assert bench.claims.renew([], lease=LEASE) == []


@pytest.mark.parametrize("status", ["completed", "gone", "dead", "dropped"])
def test_the_heartbeat_makes_no_claim_again_that_has_ended(bench: Bench, status: str) -> None:
    run = bench.run(bench.request())
    if status == "dropped":
        bench.claims.drop(run.key)
    else:
        bench.claims.finish([run], [status])
    before = bench.content()
    assert bench.claims.renew([run], lease=LEASE) == [run]
    assert bench.content() == before


def test_claims_that_were_deleted_one_by_one_do_not_stop_the_others(bench: Bench) -> None:
    waiting, hurried, next_one, running, pending = (bench.request(f"gone-{i}") for i in range(5))
    bench.claims.claim([waiting, pending])
    bench.claims.wait([bench.run(waiting, "t1", claim=False)], "retry", 0.0)
    bench.claims.wait([bench.run(hurried, "t2")], "budget", 0.0)
    run = bench.run(running, "t3")
    assert bench.run(next_one, "t4")
    bench.claims.wait([c for c in bench.claims.running() if c.token == "t4"], "budget", 0.0)
    bench.jump(LEASE + GRACE)
    for request in (waiting, hurried, next_one, running, pending):
        bench.client.delete(bench.key(request))
    bench.client.delete(f"{bench.claims.prefix}:count:acme")
    assert bench.sweep_due() == []
    assert bench.sweep_leases() == (0, [], [])
    assert bench.sweep_lost() == []
    assert list(bench.claims.hurry_all("budget", "acme")) == [[]]
    assert bench.claims.hurry("budget", requests=[hurried]) == []
    assert bench.claims.finish([run], ["completed"]) == []
    bench.claims.finish([bench.run(bench.request("alive"), "t5")], ["completed"])
    bench.claims.claim([waiting, hurried, next_one, running, pending])
    assert bench.claims.counts("acme") == {"pending": 5}
    left = [key for key in bench.dump() if ":waits:" in key and "retry" not in key]
    assert left == []
    bench.client.delete(*bench.client.keys(f"{bench.claims.prefix}:waits:*"))


@pytest.mark.parametrize("published_at", ["1e300", "nan", "inf", "99999999999999"])
def test_a_message_from_the_future_hides_no_lost_message(bench: Bench, published_at: str) -> None:
    forged, lost = bench.request("forged"), bench.request("lost")
    bench.claims.claim([forged])
    bench.begin(forged, "t1", published_at=published_at)
    bench.claims.claim([lost])
    bench.jump(GRACE + 1)
    assert bench.sweep_lost(empty=False) == [], "no later message was delivered"
    later = bench.request("later")
    bench.claims.claim([later])
    bench.begin(later, "t2", published_at=bench.fields(later)["published_at"])
    assert [one.job_id for one in bench.sweep_lost(empty=False)] == [lost.id]
