"""What claims wait for, who is next, and what an operator does to them: pause, resume, hurry, drop, caps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.idempotency import claims
from nexus_tasks.idempotency.claim import Begun, Claimed
from tests.integration.claiming import LEASE, Bench, new_bench, tagged


@pytest.fixture
def bench(servers: ServerAddresses) -> Iterator[Bench]:
    with new_bench(servers) as made:
        yield made


def waits(bench: Bench, name: str, reason: str, seconds: float = 60.0, **options: Any) -> None:
    """Let the claim of this name wait."""
    run = bench.run(bench.request(name, **options), f"t-{name}-{options.get('namespace', '')}")
    bench.claims.wait([run], reason, seconds)


def begin_at_cap(bench: Bench, name: str, cap: int, **options: Any) -> Begun:
    bench.claims.claim([bench.request(name, **options)])
    return bench.begin(bench.request(name, **options), f"t-{name}", cap=cap)[0]


# --- hurry ------------------------------------------------------------------------------------------------------------
def test_hurry_wakes_only_what_waits_for_its_reason(bench: Bench) -> None:
    waits(bench, "ripe", "ripeness")
    waits(bench, "backs-off", "retry")
    bench.claims.claim([bench.request("pending"), bench.request("delayed", delay=60.0)])
    bench.run(bench.request("runs"))
    everything = [bench.request(name) for name in ("ripe", "backs-off", "pending", "delayed", "runs", "unheard-of")]
    assert [w.args["name"] for w in bench.claims.hurry("ripeness", requests=everything)] == ["ripe"]
    assert bench.claims.hurry("ripeness", requests=everything) == []
    assert bench.fields(bench.request("backs-off"))["wait_reason"] == "retry"


def test_hurry_wakes_a_namespaces_longest_waiting_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        waits(bench, name, "budget")
        bench.jump(1)
    waits(bench, "a", "budget", namespace="other")
    monkeypatch.setattr(claims, "AT_ONCE", 2)
    woken = [[w.args["name"] for w in some] for some in bench.claims.hurry_all("budget", "acme")]
    assert woken == [["a", "b"], ["c"]]
    assert list(bench.claims.hurry_all("budget", "acme")) == [[]]
    assert len(next(bench.claims.hurry_all("budget", "other"))) == 1


def due_in(bench: Bench, name: str) -> float:
    fields = bench.fields(bench.request(name))
    return (float(fields["due_at"]) - bench.claims.now() * 1000) / 1000


def test_a_wake_up_that_comes_before_the_wait_is_not_lost(bench: Bench) -> None:
    """A run finds that it must wait. Before its claim waits, what it waits for comes, and others are woken."""
    early, late = (bench.run(bench.request(name), f"t-{name}") for name in ("early", "late"))
    other = bench.run(bench.request("other", namespace="other"), "t-other")
    bench.jump(1)
    list(bench.claims.hurry_all("held", "acme"))
    bench.jump(1)
    again = bench.run(bench.request("again"), "t-again")
    for run, reason in ((early, "held"), (late, "budget"), (again, "held"), (other, "held")):
        bench.claims.wait([run], reason, 60.0)
    assert due_in(bench, "early") <= 0
    assert due_in(bench, "late") > 50, "it waits for something else"
    assert due_in(bench, "again") > 50, "it began after the wake-up, and has looked since"
    assert bench.fields(bench.request("other", namespace="other"))["due_at"] > str(int(bench.claims.now() * 1000))


def test_hurry_wakes_no_more_than_it_is_asked_to(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        waits(bench, name, "held")
        bench.jump(1)
    assert [[w.args["name"] for w in some] for some in bench.claims.hurry_all("held", "acme", most=2)] == [["a", "b"]]


# --- pause ------------------------------------------------------------------------------------------------------------
def test_nothing_of_a_paused_kind_begins(bench: Bench) -> None:
    running = bench.run(bench.request("runs"))
    bench.claims.pause("thing", "401")
    assert begin_at_cap(bench, "a", 16) is Begun.EARLY
    assert begin_at_cap(bench, "b", 16, kind="other") is Begun.RUN
    [(kind, why)] = bench.claims.paused().items()
    assert (kind, why["reason"]) == ("thing", "401")
    bench.claims.finish([running], ["completed"])  # what runs may end
    [waiting] = bench.claims.waiting()
    assert waiting.wait_reason == "pause"


def test_a_pause_is_as_old_as_its_first_cause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for now, reason in ((1_000.0, "401"), (2_000.0, "403")):
        monkeypatch.setattr(bench.claims.__class__, "now", lambda _, now=now: now)
        bench.claims.pause("thing", reason)
    monkeypatch.setattr(bench.claims.redis, "scan_iter", None)  # of a million keys one is found without asking for all
    assert bench.claims.paused() == {"thing": {"reason": "403", "since": "1000"}}
    bench.claims.resume("thing")
    assert bench.claims.paused() == {}


def test_resume_wakes_all_of_the_kind_whatever_their_namespace(bench: Bench) -> None:
    bench.claims.pause("thing", "401")
    for namespace in ("acme", "other"):
        begin_at_cap(bench, "a", 16, namespace=namespace)
    bench.claims.pause("unrelated", "401")
    begin_at_cap(bench, "b", 16, kind="unrelated")
    assert sorted(w.namespace for w in bench.claims.resume("thing")) == ["acme", "other"]
    assert list(bench.claims.paused()) == ["unrelated"]
    assert begin_at_cap(bench, "a", 16) is Begun.RUN


def test_a_paused_job_does_not_poll(bench: Bench) -> None:
    bench.claims.pause("thing", "401")
    begin_at_cap(bench, "a", 16)
    bench.jump(86_400)
    assert bench.sweep_due() == []
    assert len(bench.claims.resume("thing")) == 1


def test_a_pause_that_ends_while_its_cause_is_being_recorded_leaves_no_sleeper(bench: Bench) -> None:
    run = bench.run(bench.request())
    bench.claims.pause("thing", "401")
    bench.claims.resume("thing")
    bench.claims.wait([run], "pause", 60.0)
    bench.jump(61)
    assert len(bench.sweep_due()) == 1


def test_a_resume_that_was_cut_off_is_gone_on_with(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.claims.pause("thing", "401")
    for name in "abc":
        assert begin_at_cap(bench, name, 16) is Begun.EARLY
    assert bench.claims.half_resumed() == []
    monkeypatch.setattr(claims.Claims, "hurry_all", lambda *_: 1 / 0)  # the process dies here
    with pytest.raises(ZeroDivisionError):
        bench.claims.resume("thing")
    monkeypatch.undo()
    assert bench.claims.paused() == {}
    assert bench.claims.half_resumed() == ["thing"]
    assert len(bench.claims.resume("thing")) == 3
    assert bench.claims.half_resumed() == []


# --- caps -------------------------------------------------------------------------------------------------------------
def test_a_namespace_has_no_more_runs_than_its_cap(bench: Bench) -> None:
    assert [begin_at_cap(bench, name, 2) for name in "abc"] == [Begun.RUN, Begun.RUN, Begun.EARLY]
    assert begin_at_cap(bench, "a", 2, namespace="other") is Begun.RUN
    assert bench.claims.counts("acme") == {"running": 2, "waiting": 1, "slots": 2}


@pytest.mark.parametrize("how", ["finish", "wait", "drop", "crash"])
def test_when_a_run_ends_the_longest_waiting_is_next(bench: Bench, how: str) -> None:
    first, rest = bench.request("a"), ("b", "c", "d")
    run = bench.run(first, cap=1)
    for name in rest:
        assert begin_at_cap(bench, name, 1) is Begun.EARLY
        bench.jump(0.1)
    if how == "finish":
        wakeups = bench.claims.finish([run], ["completed"])
    elif how == "wait":
        wakeups = bench.claims.wait([run], "retry", 60.0)
    elif how == "drop":
        _, wakeups = bench.claims.drop(run.key)
    else:
        bench.jump(LEASE + 1)
        _, _, wakeups = bench.sweep_leases()
    assert [w.args["name"] for w in wakeups] == ["b"]  # one slot, one job
    assert bench.begin(bench.request("b"), "tb", cap=1)[0] is Begun.RUN
    assert bench.begin(bench.request("c"), "tc", cap=1)[0] is Begun.EARLY


def test_a_rerun_stands_behind_those_who_came_before(bench: Bench) -> None:
    first = bench.request("a")
    run = bench.run(first, cap=1)
    begin_at_cap(bench, "b", 1)
    bench.claims.claim([tagged(first, "x")])
    assert [w.args["name"] for w in bench.claims.finish([run], ["completed"])] == ["b"]
    begun = bench.run(bench.request("b"), "t2", claim=False, cap=1)
    assert [w.args["name"] for w in bench.claims.finish([begun], ["completed"])] == ["a"]


def test_what_waits_for_a_slot_does_not_poll(bench: Bench) -> None:
    run = bench.run(bench.request("a"), cap=1)
    begin_at_cap(bench, "b", 1)
    bench.jump(80_000)
    assert bench.sweep_due() == []
    assert bench.sweep_lines() == []
    bench.claims.finish([run], ["completed"])


# --- drop -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["pending", "waiting", "running", "with a rerun"])
def test_drop_removes_a_claim_in_any_state(bench: Bench, state: str) -> None:
    asked = bench.request()
    bench.claims.claim([asked])
    if state != "pending":
        run = bench.run(asked, claim=False)
        if state == "waiting":
            bench.claims.wait([run], "retry", 60.0)
        if state == "with a rerun":
            bench.claims.claim([tagged(asked, "x")])
    assert bench.claims.drop(bench.key(asked)) == (True, [])
    assert bench.fields(asked) == {}
    assert bench.claims.counts("acme") == {}
    assert bench.claims.marker(bench.key(asked)) == (asked.id, "dropped")
    assert bench.claims.drop(bench.key(asked)) == (False, [])


def test_drop_with_a_job_id_spares_another_job(bench: Bench) -> None:
    asked = bench.request()
    run = bench.run(asked)
    rerun = tagged(asked, "x")
    bench.claims.claim([rerun])
    before = bench.content()
    assert bench.claims.drop(run.key, job_id=rerun.id) == (False, [])
    assert bench.content() == before
    assert bench.claims.drop(run.key, job_id=asked.id) == (True, [])


def test_a_dropped_marker_stops_messages_but_no_request(bench: Bench) -> None:
    asked = bench.request(immutable=True)
    run = bench.run(asked)
    bench.claims.drop(run.key)
    assert bench.begin(asked, "t2") == (Begun.STALE, None)
    assert bench.claims.renew([run], lease=LEASE) == [run]
    assert bench.claims.finish([run], ["completed"]) == []
    assert bench.claims.marker(run.key) == (asked.id, "dropped")
    bench.jump(86_000)
    assert bench.begin(asked, "t2") == (Begun.STALE, None)
    [ticket] = bench.claims.claim([asked])
    assert ticket.outcome is Claimed.ENQUEUED
    assert bench.begin(asked, "t3")[0] is Begun.RUN
