"""What becomes of a claim that is asked for, run, asked for again and ended; real Lua on a real Redis."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency.claim import Begun, Claimed
from nexus_tasks.idempotency.request import Flags
from tests.integration.claiming import LEASE, Bench, new_bench, tagged


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


# --- claim ------------------------------------------------------------------------------------------------------------
def test_a_new_job_is_pending_with_a_wakeup(bench: Bench) -> None:
    asked = bench.request(force=True, reasons=("why",), urgency="dream")
    [ticket] = bench.claims.claim([asked])
    assert (ticket.outcome, ticket.job_id) == (Claimed.ENQUEUED, asked.id)
    assert ticket.wakeup is not None
    assert (ticket.wakeup.key, ticket.wakeup.job_id, ticket.wakeup.kind) == (bench.key(asked), asked.id, "thing")
    assert (ticket.wakeup.queue, ticket.wakeup.namespace) == ("maintenance", "acme")
    assert ticket.wakeup.args == json.loads(asked.args)
    claim = bench.fields(asked)
    assert (claim["state"], claim["force"], claim["reasons"], claim["urgency"]) == ("pending", "1", "why", "dream")
    assert claim["published_at"] == ticket.wakeup.published_at
    assert bench.claims.counts("acme") == {"pending": 1}
    assert bench.claims.queues() == ["maintenance"]


def test_requests_of_one_call_meet_each_other(bench: Bench) -> None:
    first, second, other = bench.request(reasons=("x",)), bench.request(reasons=("y",)), bench.request("b")
    tickets = bench.claims.claim([first, second, other])
    assert [t.outcome for t in tickets] == [Claimed.ENQUEUED, Claimed.MERGED, Claimed.ENQUEUED]
    assert [t.job_id for t in tickets] == [first.id, first.id, other.id]
    assert [t.wakeup is not None for t in tickets] == [True, False, True]
    assert bench.claims.claim([]) == []


def test_a_duplicate_of_a_pending_job_merges_its_flags(bench: Bench) -> None:
    first = bench.request(reasons=("a", "ab"), urgency="dream")
    bench.claims.claim([first])
    merged = [
        tagged(first, "b", "a"),  # "b" is new though it is part of "ab"
        tagged(first, force=True, urgency="live"),
        tagged(first, "c", urgency="dream"),
    ]
    for one in merged:
        [ticket] = bench.claims.claim([one])
        assert (ticket.outcome, ticket.job_id, ticket.wakeup) == (Claimed.MERGED, first.id, None)
    claim = bench.run(first, claim=False)
    assert claim.flags == Flags(force=True, reasons=("a", "ab", "b", "c"), urgency="live")
    assert claim.job_id == first.id


def test_a_duplicate_that_changes_nothing_writes_nothing(bench: Bench) -> None:
    """A storm of duplicates is a storm of reads, not of writes to Redis' log."""
    asked = bench.request(force=True, reasons=("x", "y"), urgency="live")
    bench.claims.claim([asked])
    before, written = bench.fields(asked), _writes(bench)
    for same in (asked, bench.request(reasons=("y",), urgency="live"), bench.request(urgency="dream"), bench.request()):
        assert bench.claims.claim([same])[0].outcome is Claimed.MERGED
    assert (bench.fields(asked), _writes(bench)) == (before, written)


def _writes(bench: Bench) -> int:
    """How many times the server has been told to write a hash, from scripts too."""
    return int(bench.claims.redis.info("commandstats")["cmdstat_hset"]["calls"])


def test_a_request_alone_is_answered_as_one_among_others(bench: Bench) -> None:
    """A request alone that adds nothing has a shorter way through the script: it must end as the longer way does."""
    urgencies, extra = ("", "dream", "live", "urgent"), itertools.count()
    asked = [
        {"urgency": urgency, "force": force, "reasons": reasons}
        for urgency, force, reasons in itertools.product(urgencies, (False, True), ((), ("x",)))
    ]
    states = ("pending", "delayed", "in line", "running")
    for state, first, then in itertools.product(states, asked[::2], asked):
        if state == "in line" and not first["urgency"] and then["urgency"] == "dream":
            continue  # the claim keeps its place, which `check` counts as a dream's place before others
        alone, among = (bench.request(f"{next(extra)}", namespace=f"n{next(extra)}", **first) for _ in range(2))
        for one in (alone, among):
            if state == "in line":
                bench.claims.claim([bench.request(f"{next(extra)}", namespace=one.namespace) for _ in range(8)])
            bench.claims.claim([replace(one, delay=60.0 if state == "delayed" else 0.0)])
            if state == "running":
                bench.run(one, claim=False)
        again = [
            replace(tagged(one, *then["reasons"], force=then["force"], urgency=then["urgency"]))
            for one in (alone, among)
        ]
        [short] = bench.claims.claim([again[0]])
        long = bench.claims.claim([again[1], bench.request(f"{next(extra)}")])[0]
        assert (short.outcome, short.job_id == alone.id) == (long.outcome, long.job_id == among.id), (
            state,
            first,
            then,
        )
        left, right = bench.fields(alone), bench.fields(among)
        differ = {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}
        assert differ <= _OF_EACH_CLAIM, (state, first, then, differ)


# Ids, times and names, which two claims never share.
_OF_EACH_CLAIM = {
    *("id", "namespace", "scope", "args", "rerun_id", "rerun_args", "token"),
    *("enqueued_at", "published_at", "due_at", "started_at", "lease_until"),
}


def test_the_kind_and_the_scope_make_the_key_and_the_namespace_only_by_being_in_it(bench: Bench) -> None:
    requests = [
        bench.request("a"),
        bench.request("a", kind="other"),
        bench.request("a", namespace="b:c"),
        bench.request("a", namespace="b"),
        bench.request("a", namespace="slots"),
    ]
    assert {t.outcome for t in bench.claims.claim(requests)} == {Claimed.ENQUEUED}
    assert bench.claims.counts("b:c") == bench.claims.counts("b") == bench.claims.counts("slots") == {"pending": 1}
    assert bench.claims.counts("acme") == {"pending": 2}


def test_a_delayed_job_waits_until_it_is_due(bench: Bench) -> None:
    asked = bench.request(delay=60.0)
    [ticket] = bench.claims.claim([asked])
    assert (ticket.outcome, ticket.wakeup) == (Claimed.ENQUEUED, None)
    [waiting] = bench.claims.waiting()
    assert (waiting.wait_reason, waiting.job_id) == ("delay", asked.id)
    assert bench.sweep_due() == []
    bench.jump(59)
    assert bench.sweep_due() == []
    bench.jump(2)
    assert [w.job_id for w in bench.sweep_due()] == [asked.id]
    assert bench.sweep_due() == []


@pytest.mark.parametrize(("later", "wakes"), [(0.0, True), (30.0, False), (600.0, False)])
def test_the_earliest_of_two_delays_counts(bench: Bench, later: float, wakes: bool) -> None:
    asked = bench.request(delay=60.0)
    bench.claims.claim([asked])
    [ticket] = bench.claims.claim([replace(asked, id="other", delay=later)])
    assert (ticket.outcome, ticket.job_id) == (Claimed.MERGED, asked.id)
    assert (ticket.wakeup is not None) is wakes
    if not wakes:
        bench.jump(min(later, 60.0) + 1)
        assert len(bench.sweep_due()) == 1


def test_a_wait_that_nobody_chose_is_not_cut_short_by_a_duplicate(bench: Bench) -> None:
    claim = bench.run(bench.request())
    bench.claims.wait([claim], "retry", 60.0, retry=True)
    [ticket] = bench.claims.claim([tagged(bench.request(), "x")])
    assert (ticket.outcome, ticket.wakeup) == (Claimed.MERGED, None)
    bench.jump(61)
    [ticket] = bench.claims.claim([tagged(bench.request(), "y")])
    assert ticket.outcome is Claimed.MERGED
    assert ticket.wakeup is not None  # it is due: nobody has to wait for the sweep
    assert bench.run(bench.request(), "t2", claim=False).flags.reasons == ("x", "y")


# --- while it runs ----------------------------------------------------------------------------------------------------
def test_a_duplicate_of_a_running_job_asks_for_one_rerun_with_its_flags(bench: Bench) -> None:
    first = bench.request(reasons=("first",))
    run = bench.run(first)
    second, third = tagged(first, "second", force=True), tagged(first, "third", urgency="live")
    [ticket] = bench.claims.claim([second])
    assert (ticket.outcome, ticket.job_id, ticket.wakeup) == (Claimed.RERUN, second.id, None)
    [ticket] = bench.claims.claim([third])
    assert (ticket.outcome, ticket.job_id) == (Claimed.RERUN, second.id)  # one rerun serves both

    [wakeup] = bench.claims.finish([run], ["completed"])
    assert (wakeup.job_id, wakeup.key) == (second.id, run.key)
    again = bench.run(first, "t2", claim=False)
    assert (again.job_id, again.also) == (second.id, ())
    assert again.flags == Flags(force=True, reasons=("second", "third"), urgency="live")
    assert bench.claims.finish([again], ["completed"]) == []
    assert bench.claims.marker(run.key) == (second.id, "completed")


def test_a_duplicate_of_a_running_job_whose_input_cannot_change_changes_nothing(bench: Bench) -> None:
    first = bench.request(while_running="drop", urgency="dream")
    run = bench.run(first)
    before = bench.content()
    [ticket] = bench.claims.claim([tagged(first, "x", force=True, urgency="live")])
    assert (ticket.outcome, ticket.job_id, ticket.wakeup) == (Claimed.RUNNING, first.id, None)
    assert bench.content() == before
    assert bench.claims.finish([run], ["completed"]) == []


@pytest.mark.parametrize("end", ["finish", "wait", "crash"])
def test_values_outside_the_scope_follow_the_newest_request_in_a_rerun(bench: Bench, end: str) -> None:
    first = replace(bench.request("one"), args='{"longer_than":5}')
    claim = bench.run(first)
    assert claim.args == {"longer_than": 5}
    for longer in (10, 20):
        bench.claims.claim([replace(tagged(first), args=f'{{"longer_than":{longer}}}')])
    bench.claims.claim([replace(tagged(first), args='{"longer_than":7}').renewed()])  # reconcile's
    if end == "finish":
        bench.claims.finish([claim], ["completed"])
    elif end == "wait":
        bench.claims.wait([claim], "retry", 0.0)
    else:
        bench.jump(int(LEASE) + 1)
        bench.sweep_leases()
    bench.sweep_due()
    assert bench.run(first, "t2", claim=False).args == {"longer_than": 20}


@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_values_outside_the_scope_follow_the_newest_request_until_the_run_begins(bench: Bench, delay: float) -> None:
    first = replace(bench.request("one"), args='{"longer_than":5}', delay=delay)
    bench.claims.claim([first])
    bench.claims.claim([replace(tagged(first), args='{"longer_than":10}')])
    bench.claims.claim([replace(tagged(first), args='{"longer_than":7}').renewed()])  # reconcile's
    assert bench.fields(first)["args"] == '{"longer_than":10}'
    bench.claims.claim([replace(tagged(first), args='{"longer_than":20}', delay=0.0)])
    assert bench.run(first, claim=False).args == {"longer_than": 20}


@pytest.mark.parametrize("while_running", ["rerun", "drop"])
def test_reconcile_finds_the_running_job_and_leaves_no_trace(bench: Bench, while_running: str) -> None:
    first = bench.request(while_running=while_running, reasons=("x",))
    run = bench.run(first)
    before = bench.content()
    [ticket] = bench.claims.claim([tagged(first, "wanted", force=True).renewed()])
    assert (ticket.outcome, ticket.job_id) == (Claimed.RUNNING, first.id)
    assert bench.content() == before
    assert bench.claims.finish([run], ["completed"]) == []


def test_reconcile_sets_no_flags(bench: Bench) -> None:
    asked = bench.request(force=True, reasons=("x",), urgency="live")
    [ticket] = bench.claims.claim([asked.renewed()])
    assert ticket.outcome is Claimed.ENQUEUED
    [ticket] = bench.claims.claim([tagged(asked, "y", force=True).renewed()])
    assert (ticket.outcome, ticket.job_id) == (Claimed.MERGED, asked.id)
    assert bench.run(asked, claim=False).flags == Flags()


# --- begin ------------------------------------------------------------------------------------------------------------
def test_a_live_run_supersedes_the_next(bench: Bench) -> None:
    asked = bench.request()
    bench.run(asked)
    before = bench.content()
    assert bench.begin(asked, "t2") == (Begun.SUPERSEDED, None)
    assert bench.content() == before


def test_a_message_that_comes_after_the_end_is_stale(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.finish([bench.run(asked)], ["completed"])
    assert bench.begin(asked, "t2") == (Begun.STALE, None)
    bench.jump(901)
    assert bench.begin(asked, "t2")[0] is Begun.RUN  # no marker lasts for ever; the natural keys decide then


def test_a_message_that_comes_while_the_job_waits_is_early(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.wait([bench.run(asked)], "retry", 60.0)
    before = bench.content()
    assert bench.begin(asked, "t2") == (Begun.EARLY, None)
    assert bench.content() == before


def test_a_claim_that_redis_lost_is_made_from_its_message(bench: Bench) -> None:
    asked = bench.request(force=True, reasons=("x",), urgency="dream")
    claim = bench.run(asked, claim=False)
    assert (claim.job_id, claim.flags) == (asked.id, Flags(force=True, reasons=("x",), urgency="dream"))
    assert claim.remade
    assert not bench.run(bench.request("b"), "t2").remade


def test_a_claim_of_a_newer_release_waits_for_a_worker_that_knows_it(bench: Bench) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    bench.set(asked, version=99)
    assert bench.begin(asked) == (Begun.EARLY, None)
    [waiting] = bench.claims.waiting()
    assert waiting.wait_reason == "version"


def test_begin_notes_the_newest_message_that_its_queue_has_delivered(bench: Bench) -> None:
    watermark = f"{bench.claims.prefix}:delivered:maintenance"
    for name, published_at, expected in [("a", "2000", "2000"), ("b", "1000", "2000"), ("c", "", "2000")]:
        bench.claims.claim([bench.request(name)])
        bench.begin(bench.request(name), f"t-{name}", published_at=published_at)
        assert bench.client.get(watermark) == expected
    bench.begin(bench.request("a"), "zombie", published_at="3000")
    assert bench.client.get(watermark) == "3000"  # also when nothing runs: the message has arrived


# --- finish and fail --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("immutable", "status", "outcome"),
    [
        (True, "completed", Claimed.DONE),
        (True, "dead", Claimed.DONE),
        (True, "gone", Claimed.ENQUEUED),
        (False, "completed", Claimed.ENQUEUED),
        (False, "dead", Claimed.ENQUEUED),
    ],
)
def test_a_finished_job_answers_later_requests_when_its_input_cannot_change(
    bench: Bench, immutable: bool, status: str, outcome: Claimed
) -> None:
    first = bench.request(immutable=immutable)
    bench.claims.finish([bench.run(first)], [status])
    assert bench.fields(first) == {}
    marker = bench.dump().get(f"{bench.claims.prefix}:done:{bench.key(first).split(':', 2)[2]}")
    assert marker == (f"{first.id} {status}", 900)
    second = replace(first, id="second")
    [ticket] = bench.claims.claim([second])
    assert (ticket.outcome, ticket.job_id) == (outcome, first.id if outcome is Claimed.DONE else "second")
    if outcome is Claimed.DONE:
        assert ticket.wakeup is None
        [ticket] = bench.claims.claim([second.renewed()])
        assert ticket.outcome is Claimed.ENQUEUED  # reconcile and replay go past the marker


def test_a_job_that_is_gone_tells_who_waits_and_stops_nobody(bench: Bench) -> None:
    asked = bench.request(immutable=True)
    bench.claims.finish([bench.run(asked)], ["completed"])
    bench.claims.claim([asked.renewed()])
    bench.claims.finish([bench.run(asked, "t2", claim=False)], ["gone"])
    assert bench.claims.marker(bench.key(asked)) == (asked.id, "gone")
    [ticket] = bench.claims.claim([asked])
    assert ticket.outcome is Claimed.ENQUEUED


def test_a_dead_job_leaves_its_rerun_a_clean_slate(bench: Bench) -> None:
    first = bench.request(reasons=("first",))
    run = bench.run(first)
    bench.claims.wait([run], "retry", 0.0, retry=True, error=True)
    bench.sweep_due()
    bench.set(first, crashes=3)
    run = bench.run(first, "t2", claim=False)
    assert (run.errors, run.crashes, run.retries) == (1, 3, 1)
    assert run.failing_since is not None
    second = tagged(first, "second")
    bench.claims.claim([second])
    [wakeup] = bench.claims.finish([run], ["dead"])
    assert wakeup.job_id == second.id
    again = bench.run(first, "t3", claim=False)
    assert (again.errors, again.crashes, again.retries, again.failing_since) == (0, 0, 0, None)
    assert again.flags.reasons == ("second",)


# --- wait -------------------------------------------------------------------------------------------------------------
def test_a_run_that_waits_gives_its_flags_back_and_its_rerun_folds_in(bench: Bench) -> None:
    first = bench.request(reasons=("first",), urgency="live")
    run = bench.run(first)
    second = tagged(first, "second", force=True, urgency="dream")
    bench.claims.claim([second])
    assert bench.claims.wait([run], "ripeness", 5.0, detail="soon") == []
    claim = bench.fields(first)
    assert (claim["id"], claim["also"], claim.get("rerun_id")) == (first.id, second.id, None)
    assert (claim["wait_reason"], claim["wait_detail"]) == ("ripeness", "soon")
    bench.jump(6)
    bench.sweep_due()
    again = bench.run(first, "t2", claim=False)
    assert (again.job_id, again.also) == (first.id, (second.id,))
    assert again.flags == Flags(force=True, reasons=("first", "second"), urgency="live")

    third = tagged(first, "third")
    bench.claims.claim([third])
    bench.claims.wait([again], "ripeness", 0.0)
    bench.sweep_due()
    last = bench.run(first, "t3", claim=False)
    assert last.also == (second.id, third.id)
    assert last.flags.reasons == ("first", "second", "third")
    assert bench.claims.finish([last], ["completed"]) == []  # one run has served all three


def test_only_a_retry_counts(bench: Bench) -> None:
    asked = bench.request()
    run = bench.run(asked)
    for reason in ("ripeness", "budget", "throttle", "batch", "pause"):
        bench.claims.wait([run], reason, 0.0)
        bench.sweep_due()
        run = bench.run(asked, f"t-{reason}", claim=False)
    assert (run.retries, run.errors, run.failing_since) == (0, 0, None)
    bench.claims.wait([run], "retry", 0.0, retry=True)
    bench.sweep_due()
    run = bench.run(asked, "t2", claim=False)
    since = run.failing_since
    assert (run.retries, run.errors) == (1, 0)
    assert since is not None
    bench.client.hset(run.key, "failing_since", int(since * 1000) - 5_000)
    bench.claims.wait([run], "retry", 0.0, retry=True, error=True)
    bench.sweep_due()
    run = bench.run(asked, "t3", claim=False)
    assert (run.retries, run.errors) == (2, 1)
    assert run.failing_since == pytest.approx(since - 5, abs=0.01)  # set once


# --- whose token ------------------------------------------------------------------------------------------------------
def test_a_run_that_lost_its_claim_changes_nothing(bench: Bench) -> None:
    asked = bench.request()
    stale = bench.run(asked)
    bench.jump(LEASE + 1)
    bench.sweep_leases()
    bench.sweep_due()
    bench.run(asked, "t2", claim=False)
    bench.claims.claim([tagged(asked, "x")])
    before = bench.content()
    assert bench.claims.finish([stale], ["completed"]) == []
    assert bench.claims.finish([stale], ["dead"]) == []
    assert bench.claims.wait([stale], "retry", 1.0, retry=True, error=True) == []
    assert bench.take(stale, [bench.request("b")]) is None
    assert bench.claims.renew([stale], lease=LEASE) == [stale]
    assert bench.content() == before


@pytest.mark.parametrize("state", ["pending", "waiting", "absent"])
def test_a_run_without_a_claim_changes_nothing(bench: Bench, state: str) -> None:
    asked = bench.request()
    stale = bench.run(asked)
    bench.claims.wait([stale], "retry", 60.0)
    if state == "pending":
        bench.claims.hurry("retry", requests=[asked])
    if state == "absent":
        bench.claims.drop(stale.key)
    before = bench.content()
    assert bench.claims.finish([stale], ["completed"]) == []
    assert bench.claims.wait([stale], "retry", 1.0) == []
    assert bench.take(stale, []) is None
    assert bench.claims.renew([stale], lease=LEASE) == [stale]
    assert bench.content() == before
