"""What a reader waits for goes ahead of bulk work: the jobs of real workers whose model takes its time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from nexus_tasks import Nexus
from tests.integration.inline import NAMESPACE
from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, play
from tests.integration.test_observation_contention import HUNDREDTH
from tests.sandbox import Sandbox, engine, eventually
from tests.standin import StandIn

BULK = 150  # sessions, each with a derivation, an extraction and a digest
TALK = [{"content": f"My plan number {n} is to visit Lisbon {n} times."} for n in range(60)]


def busy(nexus: Nexus, namespace: str) -> None:
    """Bulk work of a namespace in every queue."""
    for n in range(BULK):
        said = [{"author": "ann", "content": f"My plan number {n}-{m} is to visit Porto."} for m in range(4)]
        nexus.ingest(namespace, f"bulk-{n}", said, end=True)
        nexus.extract(namespace, f"bulk-{n}")


@pytest.mark.long
@pytest.mark.parametrize(("crowd", "queues"), [(NAMESPACE, ""), ("neighbour", "derive,capture")])
def test_what_a_reader_waits_for_overtakes_bulk_work(
    claude: Callable[..., Sandbox], standin: StandIn, crowd: str, queues: str
) -> None:
    """The bulk work is the reader's own, or a neighbour's. A worker that names its queues does it too."""
    here = claude(**HUNDREDTH)
    standin.latency = 0.3
    nexus = Nexus()
    busy(nexus, crowd)
    here.worker(*(("--queues", queues) if queues else ()), concurrency=2)
    eventually(lambda: here.sql("SELECT 1 FROM job_runs"))
    nexus.ingest(NAMESPACE, "chat", TALK, observe=True, observers=[])
    asked = datetime.now(UTC)
    block = nexus.context(NAMESPACE, session_key="chat", observe=True)
    assert not block.notes  # else the read has waited in vain
    # The block may be short enough before the job has ended.
    [(begun,)] = eventually(lambda: here.sql("SELECT started_at FROM job_runs WHERE 'blocked' = ANY(reasons) LIMIT 1"))
    [(mean,)] = here.sql("SELECT extract(epoch FROM avg(finished_at - started_at)) FROM job_runs")
    assert (begun - asked).total_seconds() < 2 * float(mean) + 1.0
    [(left,)] = here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'")
    assert left > BULK, "the bulk work is still there"


def test_a_flood_of_urgent_jobs_starves_no_other_tenant(here: Sandbox) -> None:
    many = 1_000  # of 0.2 s each: 25 s of work for the worker
    play.enqueue_many([{"name": f"a{n}", "plan": ("nap",), "reason": "urgent"} for n in range(many)])
    worker = here.worker(*WITH_KINDS, concurrency=8, **ROOT)
    eventually(lambda: attempts("a30"))
    play.delay(namespace="b", name="b")
    play.delay(namespace="c", name="c", reason="urgent")
    eventually(lambda: attempts("b") and attempts("c"), within=6.0)
    assert engine.claims.counts(NAMESPACE)["waiting"] > many // 2, "the flood is still there"
    worker.kill()
