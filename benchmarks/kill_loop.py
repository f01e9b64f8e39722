"""Jobs lost, run twice and effective twice while workers are killed with SIGKILL at random times.

    python -m benchmarks.kill_loop [--kills 100] [--pool threads|prefork] [--only noop|plain|derive|poison] [--quick]

Ours and plain Celery (acks_late, reject_on_worker_lost, prefetch 1, a visibility timeout of 5 s) run the same job body
on the same Redis, one after the other; then ours derives messages, with its offline model. Last, a poison job that
kills its worker runs among innocents.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks import kill_jobs
from benchmarks.machine import calibration, table
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.embedded.urls import celery_url
from tests.deployment import Deployment, deployment, make_template

ROOT = Path(__file__).parents[1]
WORKERS, CONCURRENCY = 2, 4
SESSION = 20  # messages of a session that is derived
WAVE = 100  # jobs enqueued whenever fewer are left
AT_MOST_SECONDS = 600
GIVE_UP_SECONDS = 40  # without progress, what is left is lost


@dataclass
class Fleet:
    """Worker processes of one system; ``strike`` kills one and starts another in its place."""

    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    alive: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)

    def start(self) -> None:
        """One more worker, in a process group of its own: prefork children die with it."""
        with self.log.open("ab") as output:
            self.alive.append(
                subprocess.Popen(
                    [*self.command, "--hostname", f"k{time.time_ns()}@bench"],
                    env=self.environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def strike(self) -> None:
        """SIGKILL for a random worker and its children."""
        victim = self.alive.pop(random.randrange(len(self.alive)))
        os.killpg(victim.pid, 9)
        victim.wait()
        self.killed_at.append(time.time())
        self.start()

    def replace_dead(self) -> None:
        """What a process manager does."""
        for worker in [w for w in self.alive if w.poll() is not None]:
            self.alive.remove(worker)
            self.start()

    def stop(self) -> None:
        """End all."""
        for worker in self.alive:
            os.killpg(worker.pid, 9)
            worker.wait()
        self.alive.clear()


@dataclass
class Result:
    """What became of the jobs."""

    jobs: int
    kills: int
    lost: int
    run_twice: int
    effects_twice: int
    recovery: list[float]
    seconds: float


def loop(here: Deployment, prefix: str, fleet: Fleet, enqueue: Callable[[int], None], kills: int) -> Result:
    """Keep the queue filled while killing, until there were enough kills; then let the rest drain."""
    client, start, jobs = here.redis(), time.time(), 0
    for _ in range(WORKERS):
        fleet.start()

    def ended() -> int:
        return len(set(client.lrange(f"{prefix}:ended", 0, -1)))

    while len(fleet.killed_at) < kills and time.time() - start < AT_MOST_SECONDS:
        while jobs - ended() < WAVE:
            for n in range(jobs, jobs + WAVE):
                enqueue(n)
            jobs += WAVE
        time.sleep(random.uniform(0.3, 3.0))  # the benchmark's own rhythm: workers need over a second to start
        fleet.strike()
    progress_at, seen = time.time(), -1
    while (done := ended()) < jobs and time.time() - progress_at < GIVE_UP_SECONDS:
        if done != seen:
            progress_at, seen = time.time(), done
        fleet.replace_dead()
        time.sleep(0.2)
    fleet.stop()
    return _judge(here, prefix, fleet, jobs, time.time() - start)


def _judge(here: Deployment, prefix: str, fleet: Fleet, jobs: int, seconds: float) -> Result:
    client = here.redis()
    starts = _starts(here, prefix)
    ended = Counter(int(n) for n in client.lrange(f"{prefix}:ended", 0, -1))
    effects = here.sql("SELECT count(*), count(DISTINCT n) FROM kill_effects WHERE who = :who", who=prefix)[0]
    return Result(
        jobs=jobs,
        kills=len(fleet.killed_at),
        lost=jobs - len(ended),
        run_twice=sum(len(times) > 1 for times in starts.values()),
        effects_twice=effects[0] - effects[1],
        recovery=_recovery(starts, fleet.killed_at),
        seconds=seconds,
    )


def _starts(here: Deployment, prefix: str) -> dict[str, list[float]]:
    """When the runs of each job started."""
    starts: dict[str, list[float]] = {}
    for line in here.redis().lrange(f"{prefix}:started", 0, -1):
        job, at = line.split()
        starts.setdefault(job, []).append(float(at))
    return starts


def _recovery(starts: Mapping[str, Sequence[float]], killed_at: Sequence[float]) -> list[float]:
    """Seconds from the first kill after a run's start until the job's next run starts; the shortest first."""
    found = []
    for times in starts.values():
        for before, after in pairwise(sorted(times)):
            kills = [at for at in killed_at if before <= at <= after]
            if kills:
                found.append(after - kills[0])
    return sorted(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pool", choices=["threads", "prefork"], default="threads")
    parser.add_argument("--only", choices=["noop", "plain", "derive", "poison"])
    parser.add_argument("--quick", action="store_true", help="three kills of each")
    options = parser.parse_args()
    if options.quick:
        options.kills = 3
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with deployment(servers) as here:
                here.sql("CREATE TABLE kill_effects (who text, n int, PRIMARY KEY (who, n))")
                rows = [_row(name, result) for name, result in _systems(here, options)]
                if rows:
                    print(table(HEADINGS, rows))
                    print("bounds: 0 lost, 0 effects twice, recovery p50 ≤ 13 s, max ≤ 20 s")
                if options.only in (None, "poison"):
                    print(_poison(here, options.pool))
        finally:
            embedded.stop(Path(folder))


HEADINGS = ["system", "jobs", "kills", "lost", "run twice", "effects twice", "recovery p50", "recovery max", "seconds"]


def _row(name: str, result: Result) -> list[object]:
    recovery = result.recovery
    return [
        *(name, result.jobs, result.kills, result.lost, result.run_twice, result.effects_twice),
        f"{statistics.median(recovery):.1f} s" if recovery else "",
        f"{recovery[-1]:.1f} s" if recovery else "",
        f"{result.seconds:.0f}",
    ]


def _fleet(here: Deployment, app: str, pool: str) -> Fleet:
    config = {"CELERY_CONFIG_MODULE": "benchmarks.kill_config"} if app == "nexus_tasks" else {}
    celery = (sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "WARNING", "--pool", pool)
    return Fleet(
        command=[*celery, "--concurrency", str(CONCURRENCY), "--without-mingle", "--without-gossip"],
        environment={**here.environment, "PYTHONPATH": str(ROOT), **config},
        log=here.folder / "kills.log",
    )


def _systems(here: Deployment, options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    kills, pool, only = options.kills, options.pool, options.only
    if only in (None, "noop"):
        fleet = _fleet(here, "nexus_tasks", pool)
        yield "nexus-tasks, no-op", loop(here, here.name, fleet, lambda n: _ask(n, "bench"), kills)
    if only in (None, "plain"):
        kill_jobs.plain.conf.broker_url = celery_url(here.servers.redis_url)
        kill_jobs.plain.conf.broker_transport_options["global_keyprefix"] = f"plain-{here.name}:"
        fleet = _fleet(here, "benchmarks.kill_jobs:plain", pool)
        yield "plain Celery, no-op", loop(here, f"plain-{here.name}", fleet, kill_jobs.plain_noop.delay, kills)
    if only in (None, "derive"):
        yield "nexus-tasks, derive", derive_loop(here, _fleet(here, "nexus_tasks", pool), kills)


def derive_loop(here: Deployment, fleet: Fleet, kills: int) -> Result:
    """The same with real work: messages of ended sessions, each to be derived once."""
    nexus, start, jobs = Nexus(), time.time(), 0

    def done() -> int:
        return int(here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")[0][0])

    for _ in range(WORKERS):
        fleet.start()
    while len(fleet.killed_at) < kills and time.time() - start < AT_MOST_SECONDS:
        while jobs - done() < 4 * WAVE:
            said = [
                Message(content=f"My locker number {n} is blue.", author="ann") for n in range(jobs, jobs + SESSION)
            ]
            nexus.ingest("derive", f"s{jobs}", said, end=True)
            jobs += SESSION
        before, asked_at = done(), time.time()
        while done() == before and time.time() - asked_at < GIVE_UP_SECONDS:
            time.sleep(0.02)  # a worker that has not begun yet has nothing to lose
        time.sleep(random.uniform(0.0, 0.3))
        fleet.strike()
    progress_at, seen = time.time(), -1
    while (now := done()) < jobs and time.time() - progress_at < GIVE_UP_SECONDS:
        if now != seen:
            progress_at, seen = time.time(), now
        fleet.replace_dead()
        time.sleep(0.2)
    fleet.stop()
    starts = _starts(here, f"{here.name}:derive")
    twice = here.sql(
        "SELECT count(*) FROM (SELECT source_id FROM evidence WHERE role = 'derived_from'"
        " GROUP BY source_id HAVING count(*) > 1) AS again"
    )
    return Result(
        jobs=jobs,
        kills=len(fleet.killed_at),
        lost=jobs - done(),
        run_twice=sum(len(times) > 1 for times in starts.values()),
        effects_twice=int(twice[0][0]),
        recovery=_recovery(starts, fleet.killed_at),
        seconds=time.time() - start,
    )


def _ask(n: int, namespace: str) -> None:
    kill_jobs.kill_noop.delay(namespace=namespace, n=n)


def _poison(here: Deployment, pool: str) -> str:
    """A job that kills its worker every time, among 50 innocents."""
    client = here.redis()
    client.delete(f"{here.name}:started", f"{here.name}:ended")
    Nexus().create_namespace("poison")  # a dead letter belongs to a namespace
    for n in (*range(10_000, 10_025), -1, *range(10_025, 10_050)):
        _ask(n, "poison")
    fleet, start = _fleet(here, "nexus_tasks", pool), time.time()
    for _ in range(WORKERS):
        fleet.start()
    letters: list[tuple[object, ...]] = []
    while time.time() - start < 120:
        fleet.replace_dead()
        letters = here.sql("SELECT scope FROM dead_letters")
        done = len({int(n) for n in client.lrange(f"{here.name}:ended", 0, -1)})
        if letters and done == 50:
            break
        time.sleep(0.5)
    fleet.stop()
    return (
        f"\npoison among 50 innocents: {len(letters)} dead letter, {done} innocents done, {time.time() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
