"""A tenant's job starts soon behind another tenant's backlog: real workers, and jobs that take 0.2 s."""

from __future__ import annotations

import pytest

from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, play
from tests.sandbox import Sandbox, engine, eventually

# Alone on the machine 1.4 s (two mean durations plus 1 s); `benchmarks/neighbours.py` measures that. In one first-in,
# first-out list the job would wait for 37 s.
SOON = 6.0


@pytest.mark.parametrize(
    ("many", "concurrency"),
    [(3_000, 16), pytest.param(3_000, 32, marks=pytest.mark.long), pytest.param(100_000, 16, marks=pytest.mark.long)],
)
def test_a_single_job_starts_soon_behind_a_neighbours_backlog(here: Sandbox, many: int, concurrency: int) -> None:
    play.enqueue_many([{"namespace": "a", "name": f"a{n}", "plan": ("nap",)} for n in range(many)])
    here.worker(*WITH_KINDS, concurrency=concurrency, **ROOT)
    eventually(lambda: attempts("a30"))  # the worker is busy
    play.delay(namespace="b", name="b")
    eventually(lambda: attempts("b"), within=SOON)
    assert not attempts(f"a{many - 1}")
    waits = engine.claims.counts("a")["waiting"]
    assert waits > many // 2, "the neighbour's backlog is still there"
    for worker in here.workers:
        worker.kill()
