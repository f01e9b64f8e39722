"""Two releases side by side: no job is lost, run twice or buried because a worker does not understand it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.jobkinds import ROOT, WITH_KINDS, attempts, play
from tests.sandbox import Sandbox, Worker, engine, eventually

CLONE = Path(__file__).parents[2]
BEFORE = "34b995a"  # the release before
JOBS = 60
LONG = 120.0  # seconds: a deadline for a machine that is busy with other things


def ask(first: int, count: int) -> None:
    """Ask for jobs of two namespaces, more than a namespace has on their way."""
    play.enqueue_many([{"namespace": f"n{n % 2}", "name": str(n)} for n in range(first, first + count)])


def finished(count: int) -> bool:
    return all(attempts(str(n)) for n in range(count)) and not counts()


def counts() -> dict[str, int]:
    found = [engine.claims.counts(f"n{n}") for n in range(2)]
    return {state: sum(one.get(state, 0) for one in found) for state in {name for one in found for name in one}}


def nothing_is_lost_doubled_or_buried(here: Sandbox, count: int) -> None:
    eventually(lambda: finished(count), within=LONG, why=f"{counts()}\n{here.workers[-1].text()[-2_000:]}")
    assert [(n, attempts(str(n))) for n in range(count) if len(attempts(str(n))) != 1] == []
    assert here.sql("SELECT count(*) FROM dead_letters") == [(0,)]


@pytest.mark.long
def test_jobs_of_a_kind_that_no_worker_knows_wait_for_one_that_does(here: Sandbox) -> None:
    ask(0, 20)
    stranger = here.worker()
    eventually(lambda: [claim.wait_reason for claim in engine.claims.waiting()] == ["version"] * 20)
    assert counts() == {"waiting": 20}
    here.worker(*WITH_KINDS, **ROOT)
    nothing_is_lost_doubled_or_buried(here, 20)
    assert "Traceback" not in stranger.text()


@pytest.mark.long
def test_a_worker_that_does_not_know_a_kind_beside_one_that_does_loses_nothing(here: Sandbox) -> None:
    here.worker()
    here.worker(*WITH_KINDS, **ROOT)
    ask(0, JOBS)
    nothing_is_lost_doubled_or_buried(here, JOBS)


# --- the release before, as it was ------------------------------------------------------------------------------------
@pytest.fixture
def before(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a worker of the release before: its code, with this release's job kinds of the tests."""
    tree = tmp_path / "before"
    made = subprocess.run(
        ["git", "-C", str(CLONE), "worktree", "add", "--detach", str(tree), BEFORE], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this clone has no history")
    try:
        yield {"PYTHONPATH": str(tree)}
    finally:
        subprocess.run(["git", "-C", str(CLONE), "worktree", "remove", "--force", str(tree)], check=True)


def start(here: Sandbox, **environment: str) -> Worker:
    return here.worker(*WITH_KINDS, concurrency=4, **{**ROOT, **environment})


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("upgrade", [True, False], ids=["upgrade", "rollback"])
def test_a_rolling_change_of_release_under_load_loses_nothing(
    here: Sandbox, before: dict[str, str], upgrade: bool
) -> None:
    leaving, coming = (before, {}) if upgrade else ({}, before)
    old = [start(here, **leaving) for _ in range(2)]
    asked = 0
    for worker in old:
        ask(asked, JOBS)
        asked += JOBS
        start(here, **coming)  # beside each other, then one leaves
        ask(asked, JOBS)
        asked += JOBS
        worker.stop()
    nothing_is_lost_doubled_or_buried(here, asked)
    assert os.environ["NEXUS_KEY_PREFIX"] == here.name
