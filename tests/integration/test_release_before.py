"""A worker of this release runs the claims, canvas deliveries and messages that release 0.1.0 left in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks import Nexus, config
from tests import recorded
from tests.broker import RABBITMQ
from tests.integration.claiming import Bench
from tests.sandbox import Sandbox, app, engine, eventually

pytestmark = pytest.mark.skipif(RABBITMQ, reason="the recorded messages lie in Redis lists")

DOCUMENT = json.loads((Path(recorded.__file__).parent / "release_0_1_0.json").read_text())
CLAIMS = [entry["value"] for key, entry in DOCUMENT["keys"].items() if ":job:" in key]
CANVAS = DOCUMENT["canvas"]
RUNS = "SELECT job_id, (extract(epoch FROM queued_at) * 1000)::bigint, attempts FROM job_runs"
QUEUES = [["celery", queue] for queue in config.QUEUES]
# What follows the prefix in the keys of work that has not ended.
UNFINISHED = frozenset(("job", "delivery", "parked", "settle", "waits", "due", "leases"))
LONG = 90.0  # seconds: a deadline for a machine that is busy with other things


@pytest.mark.parametrize(
    "hours", [pytest.param(0, id="just-now"), pytest.param(2, id="two-hours-ago", marks=pytest.mark.long)]
)
def test_what_release_0_1_0_left_in_redis_is_run(here: Sandbox, hours: int) -> None:
    repeat_steps(here)
    here.flush()  # the steps have asked for jobs of their own
    recorded.load(here.redis(), here.name, DOCUMENT, now_ms=redis_time(here) - hours * 3_600_000)
    bench = Bench(engine.claims)
    claims = bench.audit(lines=False).values()
    assert len(claims) == len(CLAIMS)

    worker = here.worker()
    try:
        eventually(lambda: not unfinished(here) and not unanswered(), within=LONG)
    except AssertionError:
        pytest.fail(f"not within {LONG} s: {unfinished(here)}, {unanswered()}\n{worker.text()}")

    assert here.sql("SELECT kind, message FROM dead_letters") == []
    assert here.sql("SELECT DISTINCT state FROM derivations") == [("done",)]
    assert here.sql("SELECT id, state FROM dreams ORDER BY id") == [(1, "finished"), (2, "finished")]
    runs = {job_id: (queued, attempts) for job_id, queued, attempts in here.sql(RUNS)}
    assert [claim for claim in claims if not {claim["id"], claim.get("rerun_id", claim["id"])} <= runs.keys()] == []
    assert [(claim, runs[claim["id"]]) for claim in claims if runs[claim["id"]][0] != int(claim["enqueued_at"])] == []
    assert [(claim, runs[claim["id"]]) for claim in claims if runs[claim["id"]][1] < attempts_of(claim)] == []
    # A canvas that went on before its job had run would have the result `superseded`, which Celery never overwrites.
    results = [app.AsyncResult(canvas["id"]).result for canvas in CANVAS]
    assert [result for result in results if result["status"] == "superseded"] == []
    bench.audit()


def repeat_steps(here: Sandbox) -> None:
    """Put into Postgres what the recorded claims are about, with the ids that they name.

    Another deployment does it: the later one then declares its queues and writes its message templates anew.
    """
    with here.another() as deployment:
        nexus = Nexus(deployment)
        for step in DOCUMENT["steps"]:
            before = memory_ids(here)
            getattr(nexus, step["call"])(step["namespace"], **step["options"])
            assert sorted(memory_ids(here) - before) == step["memory_ids"], step


def memory_ids(here: Sandbox) -> set[int]:
    return {memory_id for (memory_id,) in here.sql("SELECT id FROM memories")}


def attempts_of(claim: Mapping[str, str]) -> int:
    """The runs of a recorded claim, with the one that its killed worker began and the one that ends it."""
    before = int(claim.get("retries", 0)) + int(claim.get("crashes", 0))
    return before + (claim["state"] == "running") + 1


def redis_time(here: Sandbox) -> int:
    """Milliseconds of the Redis server."""
    seconds, microseconds = here.redis().time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def unfinished(here: Sandbox) -> list[str]:
    """The keys of claims and deliveries that are left, of their indexes, and of queues that hold messages.

    What kombu keeps of killed workers may stay: kombu delivers it after its visibility timeout.
    """
    found = [key.split(":") for key in here.redis().scan_iter(f"{here.name}:*", count=1_000)]
    return sorted(":".join(key) for key in found if key[1] in UNFINISHED or key[1:] in QUEUES)


def unanswered() -> dict[str, Any]:
    """The canvases whose Celery result is not ``SUCCESS``: their state by what they are."""
    states = {canvas["what"]: app.AsyncResult(canvas["id"]).state for canvas in CANVAS}
    return {what: state for what, state in states.items() if state != "SUCCESS"}
