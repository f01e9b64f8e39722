"""Claims that some other program has damaged or made up in Redis: the rest of the deployment goes on without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.commandline import nexus
from tests.integration.inline import say
from tests.sandbox import Sandbox

Fields = dict[str, str]
DAMAGE: dict[str, Callable[[Fields], Fields]] = {
    "no fields": lambda _: {"x": "y"},
    "no id": lambda sound: {name: text for name, text in sound.items() if name != "id"},
    "no JSON": lambda sound: sound | {"args": "{not json"},
    "JSON of another kind": lambda sound: sound | {"args": "[1]"},
    "a scope that is no JSON": lambda sound: sound | {"scope": "x" * 1_000},
    "no numbers": lambda sound: sound | {"errors": "x", "enqueued_at": "soon"},
    "control characters": lambda sound: sound | {"kind": "\x1b[31m", "namespace": "\x1b]0;x\x07"},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_commands_leave_a_damaged_claim_out(here: Sandbox, damage: str) -> None:
    say("I like tea.")
    redis = here.redis()
    [sound] = redis.scan_iter(f"{here.name}:job:*")
    forged = f"{here.name}:job:derive_memory:{'0' * 64}"
    redis.hset(forged, mapping=DAMAGE[damage](redis.hgetall(sound)))
    for index in ("leases", "due", "published:derive"):
        redis.zadd(f"{here.name}:{index}", {forged: 1.0})
    job_id = redis.hget(sound, "id")
    for line in (["status"], ["metrics", "--json"], ["jobs", "list"], ["jobs", "list", "--status", "running"]):
        told = nexus(*line)
        assert told.returncode == 0, (line, told.stdout, told.stderr)
        assert "\x1b" not in told.stdout
    assert job_id in nexus("jobs", "list").stdout
