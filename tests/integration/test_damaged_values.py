"""Values that no release writes, in each key of jobs' records: the sweep or a repair mends them, and jobs go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from nexus_tasks.idempotency import key_types
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.repair import repair
from nexus_tasks.idempotency.worker.reconciler import Reconciler
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.commandline import nexus
from tests.integration.inline import due_at_once, say, work
from tests.sandbox import Sandbox, engine

GARBAGE = (b"garbage", b"-5", b"nan", b"inf", b"9" * 30, b"1e400", b"", b"\xff\xfe\x00")
SCORES = ("inf", "-inf", "1e300", "-5")
CLAIM = "derive_memory:" + "0" * 64

# What stands for <…> in the keys of common.lua.
PLACES = {
    **dict.fromkeys(("delivered", "published", "settle"), "derive"),
    **dict.fromkeys(("count", "cap", "lines"), "acme"),
    **dict.fromkeys(("line", "ahead"), "acme|derive"),
    **dict.fromkeys(("paused", "reconcile"), "derive_memory"),
    **dict.fromkeys(("job", "done", "parked"), CLAIM),
    **dict.fromkeys(("waits", "woken"), "retry:acme"),
    **dict.fromkeys(("delivery", "tick", "answer"), "x"),
    "ids": "derive_memory:abc",
}
# Without `storage`: any text may be the identity of another database. Then workers stop, which test_identity.py tries.
KEYS = [(kind, name) for kind, names in key_types.ALONE.items() for name in names if name != "storage"]
KEYS += [(kind, f"{name}:{PLACES[name]}") for kind, names in key_types.BEGINNINGS.items() for name in names]
COUNTERS = ("pending", "waiting", "running", "slots", "other")


def damage(here: Sandbox, kind: str, name: str, value: bytes) -> None:
    """Write a value of the right type into a key, into each field or beside each member that is there."""
    redis: Any = engine.claims.redis  # unlike the sandbox's client, it reads bytes that are no text
    key = f"{here.name}:{name}"
    if kind == "string":
        redis.set(key, value)
    elif kind == "hash":
        for field in [*redis.hkeys(key), *(COUNTERS if name.startswith("count:") else (b"x", value))]:
            redis.hset(key, field, value)
    elif kind == "set":
        redis.sadd(key, value)
    elif kind == "list":
        redis.lpush(key, value)
    else:
        for score in SCORES:
            redis.zadd(
                key, {value: score, f"{here.name}:queues": score, **dict.fromkeys(redis.zrange(key, 0, -1), score)}
            )


@pytest.fixture(autouse=True)
def _redis_runs_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has just started when one of these tests is the first of its process. A sweep then waits with leases."""
    monkeypatch.setattr(Claims, "uptime", lambda _self: 1e6)


def go_on(here: Sandbox) -> None:
    """What a worker does within a minute, and an operator."""
    sweeper = Sweeper(engine)
    sweeper.tick()
    repair(engine.claims)
    due_at_once(here)
    sweeper.tick()
    Reconciler(engine).round()
    engine.claims.resume("derive_memory")


def served(here: Sandbox) -> None:
    """The namespace's jobs run to their ends, and nothing fails that looks at them."""
    for line in (["status"], ["jobs", "list"], ["metrics"], ["doctor"], ["jobs", "repair"], ["namespaces", "list"]):
        told = nexus(*line)
        assert "Error" not in told.stderr, (line, told.stderr)
        assert told.returncode == 0 or line == ["doctor"], (line, told.stdout, told.stderr)
    go_on(here)
    work()
    assert here.sql("SELECT DISTINCT state FROM derivations") == [("done",)]
    assert engine.claims.counts("acme") == {}
    assert not engine.claims.mended()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), KEYS, ids=lambda part: part if ":" in part else None)
def test_the_namespace_goes_on(here: Sandbox, kind: str, name: str) -> None:
    for value in GARBAGE:
        damage(here, kind, name, value)
        say("I like tea.", end=True)
        damage(here, kind, name, value)
    go_on(here)
    say("I like coffee.", session="other", end=True)
    served(here)


# Without `queue`: any text may be the name of a queue, and a claim waits for the workers of its queue.
FIELDS = (
    *("state", "id", "kind", "namespace", "scope", "args", "version", "force", "reasons", "urgency"),
    *("errors", "crashes", "retries", "failing_since", "enqueued_at", "published_at", "republished", "trace"),
    *("due_at", "wait_reason", "lease_until", "token", "started_at", "worker", "also", "rerun_id", "slot", "open"),
)


def begun() -> None:
    for claim in engine.claims.pending("derive"):
        kind = engine.kind(claim.kind)
        request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
        engine.claims.begin(request, "1-dead:1", lease=0.0, cap=16, gathers=False, published_at="")


def waits() -> None:
    begun()
    engine.claims.wait(engine.claims.running(), "retry", 0.0, retry=True, error=True, failure="x")


STATES: dict[str, Callable[[], None]] = {"pending": lambda: None, "running": begun, "waiting": waits}
CASES = [
    (field, value)
    for number, field in enumerate(FIELDS)
    for value in (GARBAGE[number % len(GARBAGE)], GARBAGE[(number + 3) % len(GARBAGE)])
]
AT_ONCE = 8  # as many claims of a namespace are pending at a time


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_a_damaged_claim_stops_only_itself_and_is_made_again(here: Sandbox, state: str) -> None:
    for start in range(0, len(CASES), AT_ONCE):
        cases = CASES[start : start + AT_ONCE]
        for number in range(len(cases)):
            say("I like tea.", session=f"{start + number}")
        STATES[state]()
        keys = sorted(here.redis().scan_iter(f"{here.name}:job:derive_memory:*"))
        assert len(keys) == len(cases)
        damaged = dict(zip(keys, cases, strict=True))
        for key, (field, value) in damaged.items():
            here.redis().hset(key, field, value)
        go_on(here)
        work()
        left = here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'")
        still = [(damaged.get(key), here.redis().hgetall(key)) for key in here.redis().scan_iter(f"{here.name}:job:d*")]
        assert left == [(0,)], still
        here.redis().delete(*keys)
        repair(engine.claims)
    say("I like coffee.", session="other")
    served(here)


def test_the_log_says_what_was_wrong(here: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    say("I like tea.")
    here.redis().hset(f"{here.name}:count:acme", "pending", "garbage")
    with caplog.at_level(logging.WARNING):
        say("I like coffee.", session="other")
        assert engine.claims.counts("acme")["pending"] == 1, "it is counted from 0 again"
        Sweeper(engine).tick()
    assert "count:acme pending" in caplog.text
    repair(engine.claims)
    assert engine.claims.counts("acme")["pending"] == 2
    assert here.redis().hgetall(f"{here.name}:damaged:count:acme") == {"pending": "garbage"}


def test_a_lock_without_an_end_ends(here: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sweeping", "reconciling", "checking", "repairing"):
        here.redis().set(f"{here.name}:{name}", "garbage")
    with caplog.at_level(logging.WARNING):
        Sweeper(engine).tick()
    assert caplog.text.count("had no end") == 4
    for name in ("sweeping", "reconciling", "checking", "repairing"):
        assert 0 < here.redis().pttl(f"{here.name}:{name}") <= 2_000 or not here.redis().exists(f"{here.name}:{name}")


def test_a_pause_that_another_program_wrote_is_lifted(here: Sandbox) -> None:
    say("I like tea.")
    here.redis().hset(f"{here.name}:paused:derive_memory", "x", "y")
    work()
    assert here.sql("SELECT state FROM derivations") == [("wanted",)]
    sweeper = Sweeper(engine)
    sweeper.tick()
    sweeper.probe()
    work()
    assert here.sql("SELECT state FROM derivations") == [("done",)]
    assert engine.claims.paused() == {}
