"""Canvas deliveries beside their claims: parked for the run they need, settled when it ends, until Celery is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claimed, Wakeup
from nexus_tasks.idempotency.request import Request
from tests.integration.claiming import GRACE, Bench, new_bench, tagged, waited_for


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def park(bench: Bench, request: Request, name: str = "") -> Request:
    """Ask for the same work as a canvas delivery."""
    asked = waited_for(replace(tagged(request), id=name) if name else request)
    bench.claims.claim([asked])
    return asked


def sent(wakeups: list[Wakeup]) -> dict[str, tuple[str, str]]:
    """The deliveries among messages, with their outcomes."""
    return {wakeup.job_id: wakeup.outcome for wakeup in wakeups if wakeup.outcome}


def parked(bench: Bench, request: Request) -> dict[str, str]:
    """Which deliveries wait, and for which run."""
    return bench.client.hgetall(bench.key(request).replace(":job:", ":parked:"))


def answer(bench: Bench, name: str) -> tuple[str, str] | None:
    return bench.claims.delivery_outcome(name, queue="maintenance")


def nothing_left(bench: Bench) -> bool:
    return not [key for key in bench.audit() or bench.dump() if ":delivery:" in key or ":settle:" in key]


# --- parking ----------------------------------------------------------------------------------------------------------
def test_a_delivery_is_parked_for_the_run_that_answers_it(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    park(bench, first, "merged")
    assert parked(bench, first) == {"first": "first", "merged": "first"}
    run = bench.run(first, claim=False)
    park(bench, first, "rerun")
    park(bench, first, "rerun-too")
    assert parked(bench, first) == {"first": "first", "merged": "first", "rerun": "rerun", "rerun-too": "rerun"}
    wakeups = bench.claims.finish([run], ["completed"])
    assert sent(wakeups) == {"first": ("completed", "first"), "merged": ("completed", "first")}
    assert parked(bench, first) == {"rerun": "rerun", "rerun-too": "rerun"}
    again = bench.run(first, "t2", claim=False)
    assert sent(bench.claims.finish([again], ["skipped"])) == {
        "rerun": ("skipped", "rerun"),
        "rerun-too": ("skipped", "rerun"),
    }
    bench.audit()


def test_a_delivery_whose_work_runs_and_cannot_change_waits_for_that_run(bench: Bench) -> None:
    asked = bench.request(id="first", while_running="drop", immutable=True)
    run = bench.run(asked)
    park(bench, asked, "second")
    assert parked(bench, asked) == {"second": "first"}
    assert sent(bench.claims.finish([run], ["completed"])) == {"second": ("completed", "first")}


def test_a_delivery_whose_work_is_done_is_settled_at_once(bench: Bench) -> None:
    asked = bench.request(id="first", immutable=True)
    bench.claims.finish([bench.run(asked)], ["completed"])
    [ticket] = bench.claims.claim([waited_for(tagged(asked))])
    assert (ticket.outcome, ticket.job_id) == (Claimed.DONE, "first")
    assert ticket.wakeup is not None
    assert ticket.wakeup.outcome == ("completed", "first")
    bench.audit()


def test_a_delayed_delivery_waits_for_its_claim(bench: Bench) -> None:
    asked = waited_for(bench.request(id="later", delay=60.0))
    [ticket] = bench.claims.claim([asked])
    assert ticket.wakeup is None
    assert bench.begin(asked)[0] is Begun.EARLY
    assert answer(bench, "later") is None
    bench.jump(61)
    assert [wakeup.job_id for wakeup in bench.sweep_due()] == ["later"]
    run = bench.run(asked, claim=False)
    assert sent(bench.claims.finish([run], ["completed"])) == {"later": ("completed", "later")}


def test_a_claims_own_wake_ups_carry_no_callbacks(bench: Bench) -> None:
    asked = waited_for(bench.request())
    [ticket] = bench.claims.claim([asked])
    assert ticket.wakeup is not None
    assert ticket.wakeup.options is None
    bench.jump(GRACE + 1)
    [again] = bench.sweep_lost()
    assert (again.job_id, again.options, again.outcome) == (asked.id, None, None)


# --- which run settles it ---------------------------------------------------------------------------------------------
def test_a_rerun_that_folds_into_a_wait_settles_with_it(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    run = bench.run(first, claim=False)
    park(bench, first, "rerun")
    bench.claims.wait([run], "retry", 0.0, retry=True)
    bench.sweep_due()
    again = bench.run(first, "t2", claim=False)
    assert again.also == ("rerun",)
    done = sent(bench.claims.finish([again], ["completed"]))
    assert done == {"first": ("completed", "first"), "rerun": ("completed", "first")}


def test_what_is_parked_outlives_a_crash(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.run(first, claim=False)
    bench.jump(11)
    returned, _, _ = bench.sweep_leases()
    assert returned == 1
    assert parked(bench, first) == {"first": "first"}
    bench.jump(3)
    bench.sweep_due()
    assert sent(bench.claims.finish([bench.run(first, "t2", claim=False)], ["completed"])) == {
        "first": ("completed", "first")
    }


def test_a_dead_run_settles_as_dead_and_a_rerun_lives_on(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    run = bench.run(first, claim=False)
    park(bench, first, "rerun")
    assert sent(bench.claims.finish([run], ["dead"])) == {"first": ("dead", "first")}
    assert parked(bench, first) == {"rerun": "rerun"}


def test_a_drop_settles_everything_that_is_parked(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.run(first, claim=False)
    park(bench, first, "rerun")
    _, wakeups = bench.claims.drop(bench.key(first))
    assert sent(wakeups) == {"first": ("dropped", "first"), "rerun": ("dropped", "first")}
    assert parked(bench, first) == {}


def test_a_run_that_lost_its_claim_settles_nothing(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    zombie = bench.run(first, claim=False)
    bench.jump(11)
    bench.sweep_leases()
    assert bench.claims.finish([zombie], ["completed"]) == []
    assert parked(bench, first) == {"first": "first"}


def test_a_revoked_delivery_is_unparked_and_its_claim_goes_on(bench: Bench) -> None:
    first = bench.request(id="first")
    bench.claims.claim([first])
    park(bench, first, "second")
    dropped, _ = bench.claims.drop(bench.key(first), job_id="second", delivery="second")
    assert not dropped
    assert parked(bench, first) == {}
    assert bench.fields(first)["state"] == "pending"
    assert nothing_left(bench)


def test_revoking_the_claims_own_delivery_drops_it_and_settles_the_others(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    park(bench, first, "second")
    dropped, wakeups = bench.claims.drop(bench.key(first), job_id="first", delivery="first")
    assert dropped
    assert sent(wakeups) == {"second": ("dropped", "first")}
    assert answer(bench, "first") is None


# --- several jobs behind one delivery ---------------------------------------------------------------------------------
def test_a_delivery_for_several_jobs_settles_with_the_last_of_them(bench: Bench) -> None:
    one, two = bench.request("a", id="one"), bench.request("b", id="two")
    one, two = waited_for(one, parts=2), waited_for(two, of=one, parts=2)
    bench.claims.claim([one, two])
    runs = [bench.run(one, "t1", claim=False), bench.run(two, "t2", claim=False)]
    assert sent(bench.claims.finish(runs[:1], ["dead"])) == {}
    assert sent(bench.claims.finish(runs[1:], ["completed"])) == {"one": ("dead", "one")}


def test_a_delivery_is_revoked_for_all_its_jobs(bench: Bench) -> None:
    one, two = bench.request("a", id="one"), bench.request("b", id="two")
    one, two = waited_for(one, parts=2), waited_for(two, of=one, parts=2)
    bench.claims.claim([one, two])
    run = bench.run(two, claim=False)
    bench.claims.drop(bench.key(one), job_id="one", delivery="one")
    assert bench.claims.finish([run], ["completed"]) == []
    assert nothing_left(bench)


# --- completing -------------------------------------------------------------------------------------------------------
def test_one_message_of_a_delivery_gets_the_answer(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    run = bench.run(first, claim=False)
    assert answer(bench, "first") is None  # not yet
    assert bench.claims.finish([run], ["completed"], delivery="first") == []  # its own run brings the answer itself
    assert answer(bench, "first") == ("completed", "first")
    assert answer(bench, "first") is None  # the copy that arrives meanwhile
    bench.claims.delivery_accounted("first")
    assert answer(bench, "first") is None
    assert nothing_left(bench)


def test_a_message_that_arrives_again_after_all_is_done_runs_nothing(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"], delivery="first")
    answer(bench, "first")
    bench.claims.delivery_accounted("first")
    assert bench.begin(first)[0] is Begun.STALE  # the marker is there
    bench.claims.claim([tagged(replace(first, delivery=None))])
    assert bench.begin(first)[0] is Begun.STALE  # somebody has asked for the same work since


def test_a_message_that_comes_late_does_not_run_again_what_was_gone(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["gone"])  # this marker stops no new request
    assert bench.begin(first)[0] is Begun.STALE  # another message completes it just now
    answer(bench, "first")
    bench.claims.delivery_accounted("first")
    assert bench.begin(first)[0] is Begun.STALE


def test_a_delivery_that_redis_has_lost_is_parked_again_by_its_message(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.flush()
    run = bench.run(first, claim=False)
    assert parked(bench, first) == {"first": "first"}
    assert sent(bench.claims.finish([run], ["completed"])) == {"first": ("completed", "first")}


def test_an_id_that_is_used_again_starts_over(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"])
    assert answer(bench, "first") == ("completed", "first")
    park(bench, first)  # a chain that was continued twice
    bench.claims.delivery_accounted("first")  # of the first time
    assert parked(bench, first) == {"first": "first"}
    park(bench, first)
    assert sent(bench.claims.finish([bench.run(first, "t2", claim=False)], ["empty"])) == {"first": ("empty", "first")}


# --- killed between any two steps -------------------------------------------------------------------------------------
def settles_in_the_end(bench: Bench, request: Request, name: str) -> bool:
    """What the sweep and living workers do from here on, until the delivery is accounted for."""
    for _ in range(6):
        bench.jump(125)
        bench.sweep_leases()
        bench.jump(3)
        bench.sweep_due()
        bench.sweep_lost()
        begun, run = bench.begin(replace(request, delivery=None), "last")
        if begun is Begun.RUN and run:
            bench.claims.finish([run], ["completed"])
        for wakeup in bench.sweep_settle():
            assert wakeup.job_id == name
            if answer(bench, name):
                bench.claims.delivery_accounted(name)
                return nothing_left(bench)
    return False


@pytest.mark.parametrize("step", ["publish", "begin", "finish", "message", "answer", "account"])
def test_whoever_is_killed_before_this_step_costs_a_delay_only(bench: Bench, step: str) -> None:
    first = park(bench, bench.request(id="first"))
    asked = park(bench, first, "second")
    if step not in ("publish", "begin"):
        run = bench.run(first, claim=False)
        if step != "finish":
            wakeups = bench.claims.finish([run], ["completed"], delivery="first")
            assert sent(wakeups) == {"second": ("completed", "first")}
            answer(bench, "first")
            bench.claims.delivery_accounted("first")
            if step == "account":
                assert answer(bench, "second") == ("completed", "first")
            assert settles_in_the_end(bench, asked, "second")
            return
    bench.claims.drop(bench.key(first), job_id="nobody", delivery="first")  # one delivery is enough to look at
    assert settles_in_the_end(bench, asked, "second")


def test_a_settled_delivery_is_sent_again_when_its_message_is_lost_and_not_before(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"])
    assert bench.sweep_settle() == []
    bench.jump(GRACE + 1)
    assert bench.sweep_settle(empty=False) == []  # it may still be in its queue
    [again] = bench.sweep_settle()
    assert again.outcome == ("completed", "first")
    assert again.options == {"chain": []}
    bench.audit()
    bench.jump(GRACE + 1)
    assert bench.sweep_settle() == []  # the grace doubles
    bench.jump(GRACE)
    assert len(bench.sweep_settle()) == 1
    bench.audit()


def test_a_later_message_shows_that_a_settled_one_is_lost(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"])
    bench.jump(GRACE + 1)
    later = int(bench.claims.now() * 1000)
    bench.claims.delivery_outcome("another", queue="maintenance", published_at=str(later))
    assert len(bench.sweep_settle(empty=False)) == 1


def test_a_worker_that_dies_while_it_completes_leaves_it_to_the_next(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"], delivery="first")
    assert answer(bench, "first")
    assert answer(bench, "first") is None
    bench.jump(GRACE + 1)
    [again] = bench.sweep_settle()
    assert answer(bench, again.job_id) == ("completed", "first")


def test_a_delivery_that_nobody_completes_is_given_up_after_a_week(bench: Bench) -> None:
    first = park(bench, bench.request(id="first"))
    bench.claims.finish([bench.run(first, claim=False)], ["completed"])
    bench.jump(8 * 86_400)
    assert bench.sweep_settle() == []
    assert nothing_left(bench)


def test_what_a_worker_holds_back_is_not_lost(bench: Bench) -> None:
    asked, first = bench.request("b", id="held"), park(bench, bench.request(id="first"))
    bench.claims.claim([asked])
    bench.claims.finish([bench.run(first, claim=False)], ["completed"])
    for _ in range(10):
        bench.jump(GRACE - 1)
        bench.claims.keep_reserved({"held": bench.key(asked), "first": bench.key(first)})
        assert bench.sweep_lost() == []
        assert bench.sweep_settle() == []
    bench.audit()
    bench.jump(GRACE + 1)
    assert [wakeup.job_id for wakeup in bench.sweep_lost()] == ["held"]
    assert [wakeup.job_id for wakeup in bench.sweep_settle()] == ["first"]
