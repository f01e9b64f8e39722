"""The line of a namespace: few of its wake-ups are on their way, and each end of a run lets the next claim go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claimed, Wakeup
from nexus_tasks.idempotency.request import URGENT, Request
from tests.integration.claiming import AHEAD, LEASE, Bench, new_bench, tagged, waited_for

CAP = 16


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def ask(bench: Bench, *names: str, **options: str) -> list[Wakeup]:
    """Ask for jobs in one step; the wake-ups that it sends."""
    tickets = bench.claims.claim([bench.request(name, **options) for name in names])
    return [ticket.wakeup for ticket in tickets if ticket.wakeup]


def ask_in_turn(bench: Bench, *names: str, **options: str) -> list[Wakeup]:
    """Ask for jobs, each a second after the one before."""
    sent = []
    for name in names:
        sent += ask(bench, name, **options)
        bench.jump(1)
    return sent


def begin(bench: Bench, name: str, *, cap: int = CAP, **options: str) -> Begun:
    return bench.begin(bench.request(name, **options), f"t-{name}", cap=cap)[0]


def end(bench: Bench, name: str, **options: str) -> list[str]:
    """End a run; who is woken."""
    claim = bench.claims.get(bench.key(bench.request(name, **options)))
    assert claim
    return names(bench.claims.finish([claim], ["completed"]))


def names(wakeups: Sequence[Wakeup]) -> list[str]:
    return [str(wakeup.args["name"]) for wakeup in wakeups]


def test_a_flood_leaves_few_messages_in_the_queue(bench: Bench) -> None:
    flood = [f"a{n:04}" for n in range(3_000)]
    sent = [wakeup for start in range(0, 3_000, 500) for wakeup in ask(bench, *flood[start : start + 500])]
    assert names(sent) == flood[:AHEAD]
    assert bench.claims.counts("acme") == {"pending": AHEAD, "waiting": 3_000 - AHEAD}
    assert names(ask(bench, "b", namespace="other")) == ["b"]


def test_each_begin_and_each_end_lets_one_go_and_the_cap_is_kept(bench: Bench) -> None:
    flood = [f"a{n:02}" for n in range(40)]
    on_their_way, running, begun = names(ask_in_turn(bench, *flood)), list[str](), list[str]()
    while on_their_way or running:
        if on_their_way and len(running) < CAP:
            name = on_their_way.pop(0)
            assert begin(bench, name) is Begun.RUN
            begun.append(name)
            running.append(name)
            on_their_way += names(bench.woken)
        else:
            on_their_way += end(bench, running.pop(0))
        assert len(on_their_way) <= AHEAD
        assert len(on_their_way) + len(running) <= CAP
        bench.audit()
    assert begun == flood  # the oldest first, and no wake-up for nothing
    assert bench.claims.counts("acme") == {}


def test_at_the_cap_nothing_is_sent_that_could_not_run(bench: Bench) -> None:
    for n in range(4):
        bench.run(bench.request(f"r{n}"), f"t{n}", cap=4)
    assert ask(bench, "a", "b") == []
    assert bench.sweep_lines() == []
    assert end(bench, "r0") == ["a"]


def test_live_work_stands_before_dreams_and_a_live_request_moves_a_dream_forward(bench: Bench) -> None:
    bench.run(bench.request("first"), cap=1)
    for name, urgency in (("d1", "dream"), ("d2", "dream"), ("plain", ""), ("live", "live")):
        ask_in_turn(bench, name, urgency=urgency)
    bench.claims.claim([bench.request("d2", urgency="live")])
    order, name = [], "first"
    while woken := end(bench, name):
        [name] = woken
        order.append(name)
        assert begin(bench, name, cap=1) is Begun.RUN
    assert order == ["d2", "plain", "live", "d1"]


def test_what_backed_off_joins_the_line_by_its_age(bench: Bench) -> None:
    old = bench.run(bench.request("old"), cap=1)
    bench.jump(1)
    ask_in_turn(bench, "young")
    assert names(bench.claims.wait([old], "retry", 5.0)) == ["young"]
    assert begin(bench, "young", cap=1) is Begun.RUN
    ask_in_turn(bench, "younger")
    bench.jump(5)
    assert bench.claims.sweep_due(10) == (1, [])
    assert end(bench, "young") == ["old"]


@pytest.mark.parametrize("how", ["due", "hurried", "resumed"])
def test_many_claims_that_may_go_on_together_stand_in_line(bench: Bench, how: str) -> None:
    for n in range(20):
        run = bench.run(bench.request(f"a{n:02}"), f"t{n}", cap=99)
        if how == "resumed":
            bench.claims.pause("thing", "401")
        bench.claims.wait([run], "pause" if how == "resumed" else "budget", 5.0)
        bench.client.delete(f"{bench.claims.prefix}:paused:thing")
    bench.begin(bench.request("x", namespace="other"), "tx")
    if how == "due":
        bench.jump(6)
        assert len(bench.sweep_due()) == AHEAD
    elif how == "hurried":
        assert len(next(bench.claims.hurry_all("budget", "acme"))) == AHEAD
    else:
        assert len(bench.claims.resume("thing")) == AHEAD
    assert bench.claims.counts("acme") == {"pending": AHEAD, "waiting": 20 - AHEAD}


def test_a_queue_without_workers_holds_up_no_other_queue_of_the_namespace(bench: Bench) -> None:
    ask(bench, *(f"r{n:02}" for n in range(30)), queue="unread")
    ask(bench, *(f"d{n:02}" for n in range(30)), queue="read")
    begun = 0
    while begun < 30:
        for claim in bench.claims.pending("read"):
            bench.run(bench.request(str(claim.args["name"]), queue="read"), f"t{begun}", claim=False)
            begun += 1
        for claim in bench.claims.running():
            bench.claims.finish([claim], ["completed"])
        bench.audit()
    assert bench.claims.counts("acme") == {"pending": AHEAD, "waiting": 30 - AHEAD}


def test_of_two_queues_that_share_a_slot_the_loser_keeps_its_place(bench: Bench) -> None:
    bench.run(bench.request("first"), cap=1)
    ask(bench, "d1", queue="derive")
    ask_in_turn(bench, "r1", "r2", queue="reflect")
    assert sorted(end(bench, "first")) == ["d1", "r1"]  # a worker may consume one of the two only
    assert begin(bench, "d1", cap=1, queue="derive") is Begun.RUN
    assert begin(bench, "r1", cap=1, queue="reflect") is Begun.EARLY
    assert bench.woken == []
    assert end(bench, "d1", queue="derive") == ["r1"]


def test_a_raised_cap_fills_the_line_at_the_next_begin(bench: Bench) -> None:
    bench.run(bench.request("first"), cap=1)
    ask(bench, "a", "b", "c", "d")
    assert end(bench, "first") == ["a"]
    assert begin(bench, "a", cap=4) is Begun.RUN
    assert names(bench.woken) == ["b", "c", "d"]


def test_a_message_for_a_claim_in_line_runs_it_when_a_slot_is_free(bench: Bench) -> None:
    ask(bench, *"abcdefghij")
    assert bench.fields(bench.request("j"))["wait_reason"] == "concurrency"
    assert begin(bench, "j") is Begun.RUN


def test_a_wakeup_that_ran_nothing_lets_the_next_go(bench: Bench) -> None:
    ask(bench, *"abcdefghij")
    bench.claims.pause("thing", "401")
    assert begin(bench, "a") is Begun.EARLY
    assert names(bench.woken) == ["i"]
    assert names(bench.claims.drop(bench.key(bench.request("b")))[1]) == ["j"]


def test_a_batch_takes_claims_in_line_and_lets_others_go(bench: Bench) -> None:
    ask(bench, *"abcdefghijkl")
    lead = bench.run(bench.request("a"), claim=False)
    assert names(bench.woken) == ["i"]
    taken = bench.take(lead, [bench.request(name) for name in "bcl"])
    assert taken is not None
    assert len(taken) == 3
    assert names(bench.woken) == ["j", "k"]
    bench.claims.finish([lead, *taken], ["completed"] * 4)


def test_a_canvas_delivery_in_line_sends_its_message_when_its_turn_comes(bench: Bench) -> None:
    run = bench.run(bench.request("first"), cap=1)
    delivery = waited_for(bench.request("part"))
    [ticket] = bench.claims.claim([delivery])
    assert (ticket.outcome, ticket.wakeup) == (Claimed.ENQUEUED, None)
    [wakeup] = bench.claims.finish([run], ["completed"])
    assert wakeup.job_id == delivery.id
    part = bench.run(replace(delivery, delivery=None), "t2", claim=False, cap=1)
    [settled] = bench.claims.finish([part], ["completed"])
    assert (settled.job_id, settled.outcome) == (delivery.id, ("completed", delivery.id))
    bench.claims.drop(bench.key(delivery), delivery=delivery.id)


def test_a_flushed_redis_forgets_the_line_and_takes_new_claims(bench: Bench) -> None:
    flood = [f"a{n}" for n in range(20)]
    ask(bench, *flood)
    bench.flush()
    assert len(ask(bench, *flood)) == AHEAD


def test_the_sweep_heals_a_line_whose_last_run_was_deleted_by_hand(bench: Bench) -> None:
    bench.deleted.append("first")
    bench.run(bench.request("first"), cap=1)
    ask(bench, "a", "b")
    bench.client.delete(bench.key(bench.request("first")))
    bench.client.zrem(f"{bench.claims.prefix}:leases", bench.key(bench.request("first")))
    bench.client.hdel(f"{bench.claims.prefix}:count:acme", "slots", "running")
    assert bench.claims.sweep_lines(100, every=10.0) == []
    bench.jump(11)
    assert names(bench.claims.sweep_lines(100, every=10.0)) == ["a"]


# --- beside a worker of the release before ----------------------------------------------------------------------------
def leave_as_the_release_before(bench: Bench, name: str) -> None:
    """End a pending job as a worker does that knows no lines."""
    key, prefix = bench.key(bench.request(name)), bench.claims.prefix
    bench.deleted.append(key)
    bench.client.delete(key)
    bench.client.zrem(f"{prefix}:published:maintenance", key)
    bench.client.hincrby(f"{prefix}:count:acme", "pending", -1)


def test_what_a_worker_of_the_release_before_has_begun_takes_no_room(bench: Bench) -> None:
    flood = [f"a{n}" for n in range(AHEAD)]
    ask(bench, *flood)
    for name in flood:
        leave_as_the_release_before(bench, name)
    bench.client.delete(f"{bench.claims.prefix}:count:acme")
    assert names(ask(bench, "next")) == ["next"]
    bench.client.zremrangebyrank(f"{bench.claims.prefix}:ahead:acme|maintenance", 0, -2)


def test_a_worker_of_the_release_before_lets_the_line_go_at_the_end_of_its_runs(bench: Bench) -> None:
    """It wakes the claim that is first in the index of the reason ``concurrency``."""
    bench.run(bench.request("first"), cap=1)
    ask_in_turn(bench, "a", "b")
    index = f"{bench.claims.prefix}:waits:concurrency:acme"
    assert bench.client.zrange(index, 0, -1) == [bench.key(bench.request(name)) for name in "ab"]
    assert bench.fields(bench.request("a"))["wait_reason"] == "concurrency"
    bench.claims.drop(bench.key(bench.request("first")))


def test_a_claim_that_the_release_before_let_wait_for_a_slot_is_due_and_joins_the_line(bench: Bench) -> None:
    run = bench.run(bench.request("first"), cap=1)
    old = bench.run(bench.request("old"), "t2", cap=2)
    bench.claims.wait([old], "concurrency", 15.0)
    bench.begin(bench.request("x", namespace="x"), "t3")
    bench.client.set(f"{bench.claims.prefix}:cap:acme", 1)
    bench.jump(16)
    bench.claims.renew([run], lease=LEASE)
    assert bench.claims.sweep_due(10) == (1, [])
    assert bench.fields(bench.request("old"))["wait_reason"] == "concurrency"
    assert end(bench, "first") == ["old"]


def test_a_rerun_joins_the_line_behind_those_who_came_before(bench: Bench) -> None:
    first = bench.request("a")
    run = bench.run(first, cap=1)
    ask_in_turn(bench, "b")
    bench.claims.claim([tagged(first, "again")])
    assert names(bench.claims.finish([run], ["completed"])) == ["b"]


# --- cost -------------------------------------------------------------------------------------------------------------
def test_the_end_of_a_run_costs_the_same_behind_a_long_line(bench: Bench) -> None:
    def commands() -> int:
        """Commands that Redis has executed, those inside scripts too."""
        return sum(int(of["calls"]) for of in bench.client.info("commandstats").values())

    costs = []
    for many in (20, 5_000):
        for start in range(0, many, 500):
            ask(bench, *(f"{many}-{n}" for n in range(start, min(start + 500, many))))
        [oldest] = bench.claims.pending("maintenance", 1)
        assert begin(bench, str(oldest.args["name"])) is Begun.RUN
        before = commands()
        assert end(bench, str(oldest.args["name"])) == []
        costs.append(commands() - before)
    assert costs[1] <= costs[0] + 5, costs  # others use this Redis too, rarely at this moment


def urgent(bench: Bench, name: str, **options: str) -> Request:
    """The request of a caller who waits for the job."""
    return bench.request(name, **{**options, "queue": URGENT, "urgency": URGENT})


def test_an_urgent_claim_needs_no_place_in_its_line(bench: Bench) -> None:
    ask_in_turn(bench, *[f"a{n:02}" for n in range(40)])
    for name in ("a39", "new"):  # a claim that stands in line, and a new one
        [ticket] = bench.claims.claim([urgent(bench, name)])
        assert ticket.wakeup
        assert ticket.wakeup.queue == URGENT
        bench.audit()
    [ticket] = bench.claims.claim([urgent(bench, "a00")])  # one whose message is on its way
    assert ticket.wakeup
    bench.audit()
    assert bench.begin(urgent(bench, "a00"), "t-a00")[0] is Begun.RUN
    assert names(bench.woken) == ["a08"]  # the next in line has the place that it left
    assert begin(bench, "a00") is Begun.SUPERSEDED
    bench.audit()


def test_at_the_cap_an_urgent_claim_gets_the_next_slot(bench: Bench) -> None:
    ask_in_turn(bench, *[f"a{n:02}" for n in range(40)])
    begun = [f"a{n:02}" for n in range(CAP)]
    assert {begin(bench, name) for name in begun} == {Begun.RUN}
    [ticket] = bench.claims.claim([urgent(bench, "late")])
    assert ticket.wakeup is None
    assert end(bench, "a00") == ["late"]
    assert begin(bench, "a16") is Begun.RUN  # a worker that got its message before
    assert bench.begin(urgent(bench, "late"), "t")[0] is Begun.EARLY
    assert end(bench, "a01") == ["late"]
    bench.audit()
    assert bench.begin(urgent(bench, "late"), "t")[0] is Begun.RUN
    assert end(bench, "a02") == ["a17"]


def test_a_flood_of_urgent_claims_leaves_few_messages_in_their_queue(bench: Bench) -> None:
    sent = [bench.claims.claim([urgent(bench, f"a{n}")])[0].wakeup for n in range(40)]
    assert len([one for one in sent if one]) == AHEAD
    [ticket] = bench.claims.claim([urgent(bench, "b", namespace="other")])
    assert ticket.wakeup
    bench.audit()


def test_a_rerun_goes_to_the_queue_that_its_request_names(bench: Bench) -> None:
    for first, second, queue in (
        (urgent(bench, "a"), bench.request("a"), "maintenance"),
        (bench.request("b"), urgent(bench, "b"), URGENT),
    ):
        run = bench.run(first, published_at="")
        bench.claims.claim([second])
        [woken] = bench.claims.finish([run], ["completed"])
        assert woken.queue == queue
        bench.audit()


def test_a_run_that_is_cut_off_stays_urgent(bench: Bench) -> None:
    run = bench.run(bench.request("a"))
    bench.claims.claim([urgent(bench, "a")])
    bench.claims.wait([run], "retry", 1.0, retry=True)
    bench.jump(2)
    [woken] = bench.sweep_due()
    assert woken.queue == URGENT
    bench.audit()
