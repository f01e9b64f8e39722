"""Counters and indexes that keys deleted by hand have made wrong: the sweep and `nexus jobs repair` mend them."""

from __future__ import annotations

import json
import math
import threading
from functools import partial
from typing import Any

import pytest

from nexus_tasks.idempotency import repair as repairing
from nexus_tasks.idempotency.claim import Begun, Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.repair import CHECK_EVERY, check, repair
from nexus_tasks.idempotency.request import VERSION, Request
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.broker import lose, queued
from tests.commandline import nexus
from tests.integration.claiming import Bench, scope_of
from tests.sandbox import Sandbox, engine


@pytest.fixture
def bench(here: Sandbox) -> Bench:  # noqa: ARG001
    return Bench(engine.claims)


def delete(bench: Bench, *names: str) -> None:
    """Delete claims by hand, past every script."""
    for name in names:
        assert bench.client.delete(bench.key(bench.request(name)))


def later(bench: Bench) -> None:
    """The time of the next check."""
    bench.client.delete(f"{bench.claims.prefix}:checking")


def test_slots_of_running_claims_that_were_deleted_are_free_after_the_next_check(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcd":
        bench.run(bench.request(name), token=f"t-{name}", cap=4)
    lives = bench.run(bench.request("lives", namespace="other"))
    delete(bench, *"abcd")
    bench.claims.claim([bench.request("e")])
    assert bench.claims.counts("acme") == {"running": 4, "slots": 4, "waiting": 1}

    Sweeper(engine).tick()
    bench.sweep_lines()
    assert bench.claims.counts("acme") == {"pending": 1}
    assert "The counter `slots` of namespace acme was 4 and is set to 0" in caplog.text
    assert bench.begin(bench.request("e"), "t-e", cap=4)[0] is Begun.RUN
    assert bench.claims.counts("other") == {"running": 1, "slots": 1}
    assert bench.claims.renew([lives], lease=10.0) == []
    bench.audit(by_hand=True)


def test_counters_that_are_right_are_left_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        bench.run(bench.request(name), token=f"t-{name}")
    bench.claims.claim([bench.request("c")])
    lead = bench.run(bench.request("lead"), token="lead", gathers=True)
    assert bench.claims.take(lead, [bench.request("c")], lease=10.0)
    before = bench.claims.counts("acme")
    check(bench.claims)
    assert repair(bench.claims).to_dict() == {"counters": [], "entries_put_back": 0, "set_aside": []}
    assert bench.claims.counts("acme") == before == {"running": 4, "slots": 3}
    assert not caplog.records
    bench.audit()


def test_checks_come_to_every_namespace_some_at_a_time_and_one_worker_checks_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(30):
        bench.client.hset(f"{bench.claims.prefix}:count:n{i}", mapping={"slots": 3, "running": 3})
    monkeypatch.setattr(repairing, "KEYS_PER_STEP", bench.client.dbsize() // 5)
    monkeypatch.setattr(repairing, "STEPS_PER_CHECK", 1)

    def wrong() -> int:
        return sum(bench.claims.counts(f"n{i}") != {} for i in range(30))

    check(bench.claims)
    left = wrong()
    check(bench.claims)
    assert wrong() == left, "the next check comes in 10 s"
    for _ in range(20):
        later(bench)
        check(bench.claims)
    assert wrong() == 0


def test_repair_mends_every_counter_and_every_index_at_once(bench: Bench) -> None:
    for name in "abcd":
        bench.run(bench.request(name), token=f"t-{name}")
    bench.claims.claim([bench.request(name) for name in ("p", "q", "r")])
    bench.claims.claim([bench.request(name, delay=60_000, wait_reason="delay") for name in ("x", "y")])
    bench.claims.pause("thing", "401")
    bench.claims.claim([bench.request(name) for name in ("u", "v")])
    assert [bench.begin(bench.request(name))[0] for name in ("u", "v")] == [Begun.EARLY] * 2
    delete(bench, *"abc", "p", "x", "u")
    prefix, queue = bench.claims.prefix, bench.request("q").queue
    lost = [
        (f"published:{queue}", "q"),
        (f"ahead:acme|{queue}", "r"),
        ("due", "y"),
        ("waits:delay:acme", "y"),
        ("leases", "d"),
    ]
    for index, name in lost:
        assert bench.client.zrem(f"{prefix}:{index}", bench.key(bench.request(name)))

    said = json.loads(nexus("jobs", "repair", "--json").stdout)
    assert said["entries_put_back"] == len(lost)
    assert [(one["counter"], one["old"], one["new"]) for one in said["counters"]] == [
        ("pending", 3, 2),
        ("running", 4, 1),
        ("slots", 4, 1),
        ("waiting", 4, 2),
    ]
    assert bench.claims.counts("acme") == {"pending": 2, "running": 1, "slots": 1, "waiting": 2}
    assert json.loads(nexus("jobs", "repair", "--json").stdout) == {
        "counters": [],
        "entries_put_back": 0,
        "set_aside": [],
    }
    assert nexus("jobs", "repair").returncode == 0
    for name in ("x", "u"):
        bench.client.zrem(f"{prefix}:due", bench.key(bench.request(name)))  # a sweep does that when they are due
    bench.audit(by_hand=True)


# --- a lost key -------------------------------------------------------------------------------------------------------
def one_of_each(bench: Bench) -> None:
    """A claim that runs, more than can be on their way, and one for each thing that a claim may wait for."""
    ask = partial(ask_as_named, bench)
    bench.run(ask("running"))
    bench.claims.claim([ask(f"queued-{i}") for i in range(12)])
    bench.claims.claim([ask("delayed", delay=5.0, wait_reason="delay")])
    bench.claims.pause("paused", "401")
    paused, strange = ask("paused", kind="paused"), ask("strange", kind="strange")
    bench.claims.claim([paused, strange])
    bench.set(strange, version=VERSION + 1)
    assert [bench.begin(request)[0] for request in (paused, strange)] == [Begun.EARLY] * 2
    bench.set(strange, version=VERSION)


def ask_as_named(bench: Bench, name: str, **options: Any) -> Request:
    """A request whose id is its name, so that the same keys come again."""
    return bench.request(name, id=name, **options)


def jobs(bench: Bench) -> list[Claim]:
    found = map(bench.claims.get, bench.client.scan_iter(f"{bench.claims.prefix}:job:*", count=1_000))
    return [claim for claim in found if claim]


def some_time_goes_by(bench: Bench, sweeper: Sweeper) -> None:
    """All messages are lost. A sweep comes, and then the messages arrive that it has sent again."""
    lose(queued())
    bench.jump(CHECK_EVERY + 1)
    sweeper._checked_at = -math.inf
    sweeper.tick()
    list(bench.claims.understood({"strange": "a newer worker"}))
    for claim in jobs(bench):
        if claim.state == "pending" and bench.client.hexists(claim.key, "republished"):
            begun, run = bench.begin(ask_as_named(bench, scope_of(claim), kind=claim.kind), f"t-{claim.key}")
            assert begun is Begun.RUN
            assert run is not None
            bench.claims.finish([run], ["completed"])


def test_whatever_key_is_lost_every_job_goes_on_within_minutes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each index and list, and each of its first entries, is lost alone."""
    monkeypatch.setattr(Claims, "uptime", lambda _self: 1e6)
    one_of_each(bench)
    parts = [
        (key, entry)
        for key, value in bench.content().items()
        if ":job:" not in key
        for entry in (None, *(list(value)[:1] if isinstance(value, dict | set) else ()))
    ]
    bench.flush()
    assert len(parts) > 30
    still = {}
    for key, entry in parts:
        one_of_each(bench)
        remove = {"zset": bench.client.zrem, "set": bench.client.srem, "hash": bench.client.hdel}
        if entry is None:
            assert bench.client.delete(key)
        else:
            assert remove[bench.client.type(key)](key, entry), (key, entry)
        sweeper = Sweeper(engine)
        sweeper.resume("paused")
        for _ in range(10):
            some_time_goes_by(bench, sweeper)
            if not jobs(bench):
                break
        left = [(claim.scope, claim.state, claim.wait_reason) for claim in jobs(bench)]
        if left:
            still[f"{key.removeprefix(bench.claims.prefix)} {entry or ''}"] = left
        bench.flush()
    assert not still


def test_repair_mends_no_counter_while_jobs_are_asked_for_and_run(bench: Bench) -> None:
    stop = threading.Event()

    def work() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            run = bench.run(bench.request(f"busy-{n % 20}"), token=f"t{n}")
            bench.claims.claim([bench.request(f"queued-{n}")])
            bench.claims.wait([run], ("retry", "throttle")[n % 2], 0.0)
            bench.sweep_due()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(5):
            assert repair(bench.claims).to_dict() == {"counters": [], "entries_put_back": 0, "set_aside": []}
    finally:
        stop.set()
        worker.join()
    bench.audit()
