"""Redis emptied, Redis and Postgres killed, in the middle of the work: everything said is derived once all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nexus_tasks import Nexus, embedded
from tests.deployment import Deployment, deployment, eventually, make_template
from tests.faults.test_kills import check, derived, ingest, quiet

TURNS, SESSIONS = 419, 19


@pytest.fixture
def own_home() -> Iterator[Path]:
    """Servers that this test may kill."""
    home = Path(tempfile.mkdtemp(prefix="nexus-fault-"))
    try:
        make_template(embedded.ensure(home))
        yield home
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def server(home: Path, name: str) -> int:
    """The pid of a home's server."""
    found = subprocess.run(["pgrep", "-f", f"{name}.*{home}"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def test_a_flushed_redis_loses_nothing(here: Deployment) -> None:
    nexus = Nexus()
    here.worker(concurrency=8)
    ingest(nexus, 1)
    eventually(lambda: derived(here) > TURNS // 8)
    here.flush()
    eventually(lambda: derived(here) == TURNS, within=60)
    eventually(lambda: here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq") == [(SESSIONS,)])
    eventually(lambda: quiet(nexus), within=60)
    check(here, TURNS, SESSIONS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["redis-server", "postgres -D"])
def test_a_killed_server_loses_nothing(own_home: Path, name: str) -> None:
    with deployment(embedded.ensure(own_home)) as here:
        nexus = Nexus()
        here.worker(concurrency=8)
        ingest(nexus, 1)
        eventually(lambda: derived(here) > TURNS // 8)
        os.kill(server(own_home, name), signal.SIGKILL)
        embedded.ensure(own_home)  # what a process manager does
        eventually(lambda: derived(here) == TURNS, within=120)
        eventually(lambda: quiet(nexus), within=120)
        check(here, TURNS, SESSIONS)


def test_a_zombie_commits_nothing(deploy: Callable[..., Deployment]) -> None:
    """SIGSTOP past the lease, then SIGCONT: another worker has done the work meanwhile."""
    here = deploy(NEXUS_LEASE_SECONDS="3")
    nexus = Nexus()
    ingest(nexus, 1)
    frozen = here.worker(concurrency=8)
    eventually(lambda: derived(here) > 20)
    os.kill(frozen.process.pid, signal.SIGSTOP)
    here.worker(concurrency=8)
    eventually(lambda: derived(here) == TURNS, within=150)
    os.kill(frozen.process.pid, signal.SIGCONT)
    eventually(lambda: quiet(nexus), within=60)
    check(here, TURNS, SESSIONS)
