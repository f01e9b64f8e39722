"""Redis emptied, Redis and Postgres killed, in the middle of the work: everything said is derived once all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nexus_tasks import Nexus, embedded
from nexus_tasks.errors import NexusError
from nexus_tasks.integrations.importers import read
from nexus_tasks.integrations.importers.conversation import Conversation
from tests.databases import administer, make_template
from tests.faults.test_kills import LOCOMO, check, derived, ingest, quiet
from tests.sandbox import Sandbox, eventually, sandbox

TURNS, SESSIONS = 419, 19
AWAY_SECONDS = 30.0


@pytest.fixture
def own_home() -> Iterator[Path]:
    """Servers that this test may kill."""
    home = Path(tempfile.mkdtemp(prefix="nexus-fault-"))
    try:
        servers = embedded.ensure(home)
        make_template(servers)
        # A killed Postgres must have on disk what it has acknowledged, as one in production.
        administer(servers, "ALTER SYSTEM RESET synchronous_commit")
        administer(servers, "SELECT pg_reload_conf()")
        yield home
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def server(home: Path, name: str) -> int:
    """The pid of a home's server."""
    found = subprocess.run(["pgrep", "-f", f"{name}.*{home}"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def test_a_flushed_redis_loses_nothing(here: Sandbox) -> None:
    nexus = Nexus()
    here.worker(concurrency=8)
    ingest(nexus, 1)
    eventually(lambda: derived(here) > TURNS // 8)
    here.flush()
    eventually(lambda: derived(here) == TURNS, within=150)
    eventually(lambda: here.sql("SELECT count(*) FROM sessions WHERE digest_end_seq = last_seq") == [(SESSIONS,)])
    eventually(lambda: quiet(nexus), within=150)
    check(here, TURNS, SESSIONS)


def empty_redis(here: Sandbox, _home: Path) -> None:
    here.redis().flushall()


def kill_redis(_here: Sandbox, home: Path) -> None:
    os.kill(server(home, "redis-server"), signal.SIGKILL)
    embedded.ensure(home)  # what a process manager does


def kill_postgres(_here: Sandbox, home: Path) -> None:
    os.kill(server(home, "postgres -D"), signal.SIGKILL)
    embedded.ensure(home)


def kill_workers(here: Sandbox, _home: Path) -> None:
    [alive] = [worker for worker in here.workers if worker.process.poll() is None]
    os.killpg(alive.process.pid, signal.SIGKILL)  # the pool's processes too
    alive.process.wait()
    here.worker(pool="processes", concurrency=2)


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute on an idle machine; the deadlines below are for a busy one
@pytest.mark.parametrize("fault", [empty_redis, kill_redis, kill_postgres, kill_workers])
def test_all_of_locomo_survives(own_home: Path, fault: Callable[[Sandbox, Path], None]) -> None:
    """Struck in the middle of ingesting the file, and again in the middle of deriving what is left."""
    with sandbox(embedded.ensure(own_home)) as here:
        nexus = Nexus()
        pool = {"pool": "processes", "concurrency": 2} if fault is kill_workers else {"concurrency": 16}
        here.worker(**pool)  # type: ignore[arg-type]
        said = list(read(LOCOMO, "locomo", namespace="n"))
        for position, one in enumerate(said):
            if position == len(said) // 2:
                fault(here, own_home)
            eventually(lambda one=one: accepted(nexus, one), within=120)
        eventually(lambda: derived(here) > 1_800, within=600)
        fault(here, own_home)
        eventually(lambda: all_derived(here), within=600)
        eventually(lambda: quiet(nexus), within=600)
        check(here, 2_960, 136)


def all_derived(here: Sandbox) -> bool:
    """Whether every turn is; a connection that was in use until just now may have to learn that its server is gone."""
    with suppress(NexusError):
        return derived(here) == 2_960
    return False


def accepted(nexus: Nexus, said: Conversation) -> bool:
    """What a producer does: when it is refused, it tries again."""
    with suppress(NexusError):
        nexus.ingest(said.namespace, said.session_key, said.messages, end=True)
        return True
    return False


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_outage_of_postgres_costs_few_log_lines(own_home: Path) -> None:
    """However much is queued: a worker that cannot reach Postgres must not fill the disk with saying so.

    A worker that is to stop meanwhile does, and the other one goes on with everything when Postgres is back.
    """
    with sandbox(embedded.ensure(own_home)) as here:
        nexus = Nexus()
        ingest(nexus, 5)
        stays, stops = here.worker(concurrency=8), here.worker(concurrency=8)
        eventually(lambda: derived(here) > 0, within=120)
        os.kill(server(own_home, "postgres -D"), signal.SIGKILL)
        started = time.monotonic()
        before = len(stays.text().splitlines())
        eventually(lambda: time.monotonic() - started > AWAY_SECONDS, within=300)
        away = time.monotonic() - started
        lines = len(stays.text().splitlines()) - before
        print(f"{lines} lines in {away:.0f} s")
        assert lines <= 150 + 2 * away
        stops.process.send_signal(signal.SIGTERM)
        eventually(lambda: stops.process.poll() is not None, within=120, why=stops.text()[-2_000:])
        assert stops.process.returncode == 0
        embedded.ensure(own_home)
        eventually(lambda: all_derived(here), within=600)
        eventually(lambda: quiet(nexus), within=300)
        check(here, 2_960, 136)


@pytest.mark.long
def test_a_zombie_commits_nothing(deploy: Callable[..., Sandbox]) -> None:
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
    eventually(lambda: quiet(nexus), within=150)
    check(here, TURNS, SESSIONS)
