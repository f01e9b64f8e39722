"""Kill workers at random with SIGKILL: count jobs lost, run twice or with effects twice; time how soon jobs run again.

    python -m benchmarks.kill_loop [--kills 100] [--pool threads|prefork] [--only noop|plain|derive|poison]
                                   [--seconds 600] [--seed 1] [--quick] [--log FILE]

Ours and plain Celery (acks_late, reject_on_worker_lost, prefetch 1, a visibility timeout of 5 s) run the same job body
on the same Redis, one after the other. Then ours derives messages with its offline model. Last, a poison job that kills
its worker runs among innocent jobs.

Two workers have four slots each. Each kill hits a random worker, ready or starting, with all its processes; then
another worker is started in its place. No system recovers faster than workers start. So the pause between two kills is
0.1 to 2.5 times (evenly spread) the time that workers now take to start on this machine. Every kill waits until a job
has begun since the last kill. Just enough jobs are queued to keep the slots busy: the benchmark measures recovery, not
a queue. For the same reason the cap on a namespace's runs is 10,000 here. The runs of a dead worker count against the
cap until their leases end, and where workers start in a second, four workers die in that time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import kill_jobs, kill_report
from benchmarks.kill_fleet import CONCURRENCY, ROOT, WORKERS, Fleet
from benchmarks.kill_recovery import Life, Touch, recoveries
from benchmarks.kill_report import Result
from benchmarks.machine import calibration
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.embedded.urls import celery_url
from tests.databases import make_template
from tests.sandbox import Sandbox, engine, eventually, sandbox

SLOTS = WORKERS * CONCURRENCY
PAUSE = 0.1, 2.5  # between two kills, in multiples of the time that workers take to start
SESSION = 20  # messages of a session that is derived
_DEAD = "SELECT count(*) FROM dead_letters WHERE kind = ANY(:kinds)"
UNCAPPED = {"NEXUS_NAMESPACE_CONCURRENCY": "10000"}
GIVE_UP_SECONDS = 60  # after so long without progress, the jobs that have not ended count as lost


@dataclass(kw_only=True)
class System:
    """A system under test: how to ask it for jobs, and how to read what its workers did."""

    name: str
    here: Sandbox
    fleet: Fleet
    prefix: str  # of the Redis keys in which the system's jobs leave notes
    queue: str  # the Redis list in which the system's messages wait
    line: str = ""  # the sorted set in which jobs wait for their message; plain Celery has none
    enqueue: Callable[[int], int]  # asks for some jobs, numbered from the argument on; returns how many
    ended: Callable[[], int]
    effects_twice: Callable[[], int]
    ours: bool = True
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def touches(self) -> dict[str, list[Touch]]:
        """By job: when it was begun, and by which worker."""
        found: dict[str, list[Touch]] = {}
        for line in self.here.redis().lrange(f"{self.prefix}:touches", 0, -1):
            job, at, group, started = line.split()
            found.setdefault(job, []).append(Touch(float(at), int(group), started == "1"))
        return found

    def lives(self) -> tuple[list[Life], list[float]]:
        """When each worker was ready and when it was killed, and how many seconds each worker took to start."""
        ends = {group: at for at, group in self.fleet.kills}
        ready = [line.split() for line in self.here.redis().lrange(f"{self.prefix}:ready", 0, -1)]
        return (
            [Life(float(at), ends.get(int(group), float("inf"))) for group, at in ready],
            [float(at) - self.fleet.started[int(group)] for group, at in ready],
        )

    def in_the_air(self) -> list[str]:
        """Pending jobs whose message is not in the queue: a worker took the message. Each message is returned once."""
        if not self.ours:
            return []
        pending = {(claim.job_id, claim.fields["published_at"]) for claim in engine.claims.pending("derive")}
        queued = {json.loads(text)["headers"]["id"] for text in self.here.redis().lrange(self.queue, 0, -1)}
        new = {one for one in pending if one[0] not in queued} - self._seen
        self._seen |= new
        return [job for job, _ in new]


def torment(system: System, kills: int, at_most: float, dice: random.Random) -> Result:
    """Keep the slots busy and kill workers, ``kills`` times or for ``at_most`` seconds. Then let all jobs end."""
    client, fleet, start, jobs = system.here.redis(), system.fleet, time.time(), 0
    lost: list[tuple[str, float]] = []
    with fleet:
        eventually(lambda: client.llen(f"{system.prefix}:ready") == WORKERS, within=120, why="the workers do not start")
        while len(fleet.kills) < kills and time.time() - start < at_most:
            boot = statistics.median(system.lives()[1][-4:])
            touched, until = client.llen(f"{system.prefix}:touches"), time.time() + boot * dice.uniform(*PAUSE)
            while time.time() < until or client.llen(f"{system.prefix}:touches") == touched:
                if client.llen(system.queue) + client.zcard(system.line) < SLOTS:
                    jobs += system.enqueue(jobs)
                time.sleep(0.02)
                fleet.replace_dead()
            fleet.strike()
            lost += [(job, fleet.kills[-1].at) for job in system.in_the_air()]
        progress_at, seen = time.time(), -1
        while (done := system.ended()) < jobs and time.time() - progress_at < GIVE_UP_SECONDS:
            if done != seen:
                progress_at, seen = time.time(), done
            fleet.replace_dead()
            time.sleep(0.2)
    touches, (lives, starts) = system.touches(), system.lives()
    dead = system.here.sql(_DEAD, kinds=list(kill_jobs.WATCHED))[0][0] if system.ours else 0
    return Result(
        name=system.name,
        jobs=jobs,
        lost=jobs - done - dead,
        dead=dead,
        effects_twice=system.effects_twice(),
        touches=touches,
        kills=fleet.kills,
        recoveries=recoveries(touches, fleet.kills, _really(lost, touches), lives),
        starts=starts,
        seconds=time.time() - start,
    )


def _really(lost: Sequence[tuple[str, float]], touches: dict[str, list[Touch]]) -> Iterator[tuple[str, float]]:
    """Leave out the messages that a living worker had received before the kill: such a job begins within 2 s."""
    for job, at in lost:
        if not any(at <= touch.at < at + 2 for touch in touches.get(job, ())):
            yield job, at


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pool", choices=["threads", "prefork"], default="threads")
    parser.add_argument("--only", choices=["noop", "plain", "derive", "poison"])
    parser.add_argument("--seed", type=int, default=1, help="of the rhythm: pauses and victims")
    parser.add_argument("--seconds", type=float, default=600, help="of killing, at most, for each system")
    parser.add_argument("--quick", action="store_true", help="three kills of each")
    parser.add_argument("--log", type=Path, help="a file for the workers' log")
    options = parser.parse_args()
    kills = 3 if options.quick else options.kills
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers), f"load {os.getloadavg()[0]:.1f}", sep=", ")
            print(f"{WORKERS} workers × {CONCURRENCY}, pool {options.pool}, seed {options.seed}", flush=True)
            for make in (noop, plain, derive):
                if options.only in (None, make.__name__):
                    with sandbox(servers, **UNCAPPED) as here:
                        here.sql("CREATE TABLE kill_effects (who text, n int, PRIMARY KEY (who, n))")
                        dice = random.Random(options.seed)
                        result = torment(make(here, options.pool, options.log, dice), kills, options.seconds, dice)
                        kill_report.show(result)
            if options.only in (None, "poison"):
                with sandbox(servers, **UNCAPPED) as here:
                    here.sql("CREATE TABLE kill_effects (who text, n int, PRIMARY KEY (who, n))")
                    print(poison(here, options.pool, options.log))
        finally:
            embedded.stop(Path(folder))


def noop(here: Sandbox, pool: str, log: Path | None, dice: random.Random) -> System:
    """Ours with the no-op job, which only sleeps."""
    return System(
        name="nexus-tasks, no-op",
        here=here,
        fleet=_fleet(here, "nexus_tasks", pool, log, dice),
        prefix=here.name,
        queue=f"{here.name}:celery:derive",
        line=f"{here.name}:line:bench|derive",
        enqueue=lambda n: _ask(range(n, n + SLOTS), "bench"),
        ended=lambda: _ended(here, here.name),
        effects_twice=lambda: _effects_twice(here, here.name),
    )


def plain(here: Sandbox, pool: str, log: Path | None, dice: random.Random) -> System:
    """Plain Celery with the no-op job."""
    prefix = f"plain-{here.name}"
    kill_jobs.plain.conf.broker_url = celery_url(here.servers.redis_url)
    kill_jobs.plain.conf.broker_transport_options["global_keyprefix"] = f"{prefix}:"

    def enqueue(first: int) -> int:
        return len([kill_jobs.plain_noop.delay(n) for n in range(first, first + SLOTS)])

    return System(
        name="plain Celery, no-op",
        here=here,
        fleet=_fleet(here, "benchmarks.kill_jobs:plain", pool, log, dice),
        prefix=prefix,
        queue=f"{prefix}:celery",
        enqueue=enqueue,
        ended=lambda: _ended(here, prefix),
        effects_twice=lambda: _effects_twice(here, prefix),
        ours=False,
    )


def derive(here: Sandbox, pool: str, log: Path | None, dice: random.Random) -> System:
    """Ours with real work: messages of ended sessions, each to be derived once."""
    nexus = Nexus()

    def enqueue(first: int) -> int:
        said = [Message(content=f"My locker number {n} is blue.", author="ann") for n in range(first, first + SESSION)]
        nexus.ingest("derive", f"s{first}", said, end=True)
        return SESSION

    twice = (
        "SELECT count(*) FROM (SELECT source_id FROM evidence WHERE role = 'derived_from'"
        " GROUP BY source_id HAVING count(*) > 1) AS again"
    )
    return System(
        name=f"nexus-tasks, derive (model at {kill_jobs.MODEL_SECONDS} s)",
        here=here,
        fleet=_fleet(here, "nexus_tasks", pool, log, dice),
        prefix=here.name,
        queue=f"{here.name}:celery:derive",
        line=f"{here.name}:line:derive|derive",
        enqueue=enqueue,
        ended=lambda: int(here.sql("SELECT count(*) FROM derivations WHERE state = 'done'")[0][0]),
        effects_twice=lambda: int(here.sql(twice)[0][0]),
    )


def _fleet(here: Sandbox, app: str, pool: str, log: Path | None, dice: random.Random) -> Fleet:
    config = {"CELERY_CONFIG_MODULE": "benchmarks.kill_config"} if app == "nexus_tasks" else {}
    celery = (sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "WARNING", "--pool", pool)
    return Fleet(
        command=[*celery, "--concurrency", str(CONCURRENCY), "--without-mingle", "--without-gossip"],
        environment={**here.environment, "PYTHONPATH": str(ROOT), **config},
        log=log or here.folder / "kills.log",
        dice=dice,
    )


def _ended(here: Sandbox, prefix: str) -> int:
    return len(set(here.redis().lrange(f"{prefix}:ended", 0, -1)))


def _effects_twice(here: Sandbox, prefix: str) -> int:
    rows, jobs = here.sql("SELECT count(*), count(DISTINCT n) FROM kill_effects WHERE who = :who", who=prefix)[0]
    return int(rows - jobs)


def _ask(numbers: Sequence[int], namespace: str) -> int:
    return len(kill_jobs.kill_noop.enqueue_many([{"namespace": namespace, "n": n} for n in numbers]))


def poison(here: Sandbox, pool: str, log: Path | None) -> str:
    """A job that kills its worker every time, among 50 innocents."""
    Nexus().create_namespace("poison")  # a dead letter belongs to a namespace
    _ask([*range(25), -1, *range(25, 50)], "poison")
    start = time.time()
    letters: list[tuple[object, ...]] = []
    with _fleet(here, "nexus_tasks", pool, log, random.Random(1)) as fleet:
        while time.time() - start < 180:
            fleet.replace_dead()
            letters = here.sql("SELECT scope FROM dead_letters")
            if letters and _ended(here, here.name) == 50:
                break
            time.sleep(0.5)
    return (
        f"poison among 50 innocents: {len(letters)} dead letter ({', '.join(str(scope) for (scope,) in letters)}), "
        f"{_ended(here, here.name)} innocents done, {time.time() - start:.0f} s"
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
