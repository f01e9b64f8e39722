"""Keys of jobs' records that another program has made with a wrong type: commands say so, and the rest goes on."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import resources
from typing import Any

import pytest

from nexus_tasks import Nexus
from nexus_tasks.errors import DamagedKey
from nexus_tasks.idempotency import key_types
from nexus_tasks.idempotency.repair import repair
from nexus_tasks.idempotency.worker.sweeper import Sweeper
from tests.broker import RABBITMQ
from tests.commandline import nexus
from tests.integration.inline import say
from tests.sandbox import Sandbox, engine, eventually

INDEXES = (
    *("due", "leases", "lines", "queues", "kinds", "reasons", "versions", "pauses", "clock"),
    *("count:acme", "published:derive", "ahead:acme|derive", "waits:retry:acme", "ids:derive_memory:abc"),
)


in_redis = pytest.mark.skipif(RABBITMQ, reason="damages a queue in Redis")
KEY_LINE = r"(?m)^--   ((?:<prefix>:[^ ]+ *)+)\n?(?:-- )? *(hash|zset|set|string|list)  "


def damage(here: Sandbox, name: str) -> str:
    redis: Any = here.redis()
    key = f"{here.name}:{name}"
    redis.delete(key)
    redis.rpush(key, "made by another program")
    return key


@pytest.mark.parametrize("name", INDEXES)
def test_commands_say_what_to_do_and_repair_does_it(here: Sandbox, name: str) -> None:
    say("I like tea.")
    key = damage(here, name)
    for line in (["status"], ["jobs", "list"], ["metrics"], ["remember", "Tea is hot.", "--namespace", "acme"]):
        told = nexus(*line)
        assert "ResponseError" not in told.stderr, (line, told.stderr)
        if told.returncode:
            assert "nexus jobs repair" in told.stderr, (line, told.stderr)
    assert key in nexus("doctor").stdout
    told = nexus("jobs", "repair")
    assert key in told.stdout, told.stdout + told.stderr
    assert key not in nexus("doctor").stdout
    assert nexus("status").returncode == 0
    assert here.redis().lrange(f"{here.name}:damaged:{name}", 0, -1) == ["made by another program"]
    assert not repair(engine.claims).set_aside


@pytest.mark.parametrize("name", [*key_types.ALONE["zset"], *key_types.ALONE["set"], "clock", "published:derive"])
def test_the_sweep_goes_on_and_mends_the_key(here: Sandbox, name: str) -> None:
    say("I like tea.")
    damage(here, name)
    sweeper = Sweeper(engine)

    def mended() -> bool:
        with suppress(DamagedKey):
            sweeper.tick()
        return not list(key_types.damaged(engine.claims))

    eventually(mended, within=20)


def test_each_key_that_the_scripts_list_has_a_type() -> None:
    text = (resources.files("nexus_tasks.idempotency") / "lua" / "common.lua").read_text()
    listed = set()
    for names, kind in re.findall(KEY_LINE, text):
        for name in re.findall(r"<prefix>:([^ ,\n]+)", names):
            word, colon, _ = name.partition(":")
            listed.add((kind, word, bool(colon)))
    known = {(kind, name, False) for kind, names in key_types.ALONE.items() for name in names}
    known |= {(kind, name, True) for kind, names in key_types.BEGINNINGS.items() for name in names}
    assert listed == known


@in_redis
def test_a_queue_that_is_no_list_ends_no_worker(here: Sandbox) -> None:
    nexus, queue = Nexus(here.deployment), f"{here.name}:celery:derive"
    worker = here.worker(concurrency=2)
    nexus.remember("acme", "I like tea.")
    eventually(lambda: here.sql("SELECT 1 FROM derivations WHERE state = 'done'"))
    here.redis().set(queue, "written by another program")
    eventually(lambda: here.redis().type(queue) in ("none", "list"), within=30)
    nexus.remember("acme", "I like coffee.")
    eventually(lambda: not here.sql("SELECT 1 FROM derivations WHERE state <> 'done'"), within=30)
    assert worker.process.poll() is None
    assert here.redis().get(f"{here.name}:celery:damaged:derive") == "written by another program"


@in_redis
def test_a_worker_starts_beside_a_queue_that_is_no_list(here: Sandbox) -> None:
    here.redis().hset(f"{here.name}:celery:derive", "x", "y")
    Nexus(here.deployment).remember("acme", "I like tea.")
    here.worker(concurrency=2)
    eventually(lambda: here.sql("SELECT 1 FROM derivations WHERE state = 'done'"), within=30)
