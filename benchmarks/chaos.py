"""Run workers under random faults, and count lost jobs, jobs with effects twice, and waits without a reason.

    python -m benchmarks.chaos [--minutes 30] [--seed N] [--before COMMIT] [--log FILE]

Two workers of each pool (threads, prefork), four slots each, derive messages and run a durable kind of the benchmark's
own. With ``--before``, one more worker of each pool runs an earlier commit, which does not know that kind. Faults come
every 1 to 6 s:

    kill      SIGKILL of a worker with its children
    freeze    a worker stands still for up to 20 s
    silence   the open connections to Redis or to Postgres take bytes and never answer; new connections work
    cut       the open connections to Redis or to Postgres are closed
    flush     FLUSHALL
    failover  Redis' address moves to a replica that lacks the last 0 to 3 s; where libfaketime is installed, the
              replica's clock is 20 s behind
    flood     another namespace asks for 300 jobs

The same seed gives the same schedule. After ``--minutes`` the faults stop, and the workers of the earlier commit end,
as in a rollout: they drop every message of a kind that they do not know. The benchmark then waits until all work that
Postgres wants is done, and gives up after ``GIVE_UP_SECONDS`` without progress.
"""

from __future__ import annotations

import argparse
import collections
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import chaos_jobs
from benchmarks.chaos_world import POOLS, World, earlier_commit, freeze, redis_pair, thaw, world
from benchmarks.machine import calibration, table
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.errors import NexusError
from tests.databases import make_template
from tests.sandbox import Sandbox, engine, sandbox
from tests.silence import proxy

NAMESPACES = [f"n{i}" for i in range(5)]
FLOODING = "flood"
PAUSE = 1.0, 6.0  # seconds between two faults
GIVE_UP_SECONDS = 660.0  # without progress, after the last fault; a message that was lost often is sent after 600 s
OVERDUE_SECONDS = 60.0  # a job that is pending (it has no wait reason) for longer than this is a wait without a reason

_DERIVED = "SELECT count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'dead') FROM derivations"
_TWICE = """
SELECT count(*) FROM (SELECT source_id FROM evidence WHERE role = 'derived_from' GROUP BY source_id HAVING count(*) > 1)
AS again
"""


@dataclass
class Load:
    """What producers asked for, and the waits that were seen."""

    said: int = 0
    marks: int = 0
    unexplained: set[str] = field(default_factory=set)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    longest: dict[str, float] = field(default_factory=dict)  # the age of the oldest claim in seconds, by wait reason


class Producer(threading.Thread):
    """Stores a message and asks for a mark (see ``chaos_jobs.py``) every 0.2 s, also during faults."""

    def __init__(self, here: Sandbox, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.here, self.dice, self.load = here, dice, Load()
        self.nexus = Nexus(here.deployment)
        self.stopped = threading.Event()
        self._numbering = threading.Lock()  # a flood asks for marks in another thread

    def run(self) -> None:
        """Ask until stopped."""
        while not self.stopped.wait(0.2):
            self.say()
            self.mark(self.dice.choice(NAMESPACES), 1)

    def say(self) -> None:
        """Store a message in a session of its own."""
        n, namespace = self.load.said, self.dice.choice(NAMESPACES)
        self.nexus.ingest(namespace, f"s{n}", [Message(content=f"My locker {n} is blue.", author="ann")], end=True)
        self.load.said += 1

    def mark(self, namespace: str, times: int) -> None:
        """Ask for marks in one transaction. If Redis is away, reconcile asks for the jobs later."""
        with self._numbering:
            numbers = range(self.load.marks, self.load.marks + times)
            self.load.marks += times
        with self.here.deployment.database.transaction() as tx:
            for n in numbers:
                chaos_jobs.chaos_mark.want(tx, namespace=namespace, n=n)


Fault = Callable[[World, random.Random, Producer], str]


def _kill(at: World, dice: random.Random, _producer: Producer) -> str:
    victim = at.fleet.pick(dice)
    at.fleet.kill(victim)
    return victim[1]


def _freeze(at: World, dice: random.Random, _producer: Producer) -> str:
    (worker, flavour), seconds = at.fleet.pick(dice), dice.uniform(1, 20)
    freeze(worker)
    threading.Timer(seconds, thaw, (worker,)).start()
    return f"{flavour} for {seconds:.0f} s"


def _silence(at: World, dice: random.Random, _producer: Producer) -> str:
    name = dice.choice(("redis", "postgres"))
    return f"{getattr(at, name).silence()} connections to {name}"


def _cut(at: World, dice: random.Random, _producer: Producer) -> str:
    name = dice.choice(("redis", "postgres"))
    return f"{getattr(at, name).cut()} connections to {name}"


def _flush(at: World, _dice: random.Random, _producer: Producer) -> str:
    at.pair.client().flushall()
    return ""


def _failover(at: World, dice: random.Random, _producer: Producer) -> str:
    lag = dice.uniform(0, 3)
    at.pair.fail_over(at.redis, lag)
    return f"to server {at.pair.master}, {lag:.1f} s behind"


def _flood(_at: World, _dice: random.Random, producer: Producer) -> str:
    producer.mark(FLOODING, 300)
    return ""


FAULTS: dict[str, tuple[Fault, int]] = {  # each with its weight
    "kill": (_kill, 4),
    "freeze": (_freeze, 3),
    "silence": (_silence, 2),
    "cut": (_cut, 2),
    "flush": (_flush, 1),
    "failover": (_failover, 1),
    "flood": (_flood, 1),
}


def torment(at: World, producer: Producer, seconds: float, dice: random.Random) -> collections.Counter[str]:
    """Cause random faults for ``seconds``. Returns how many of each there were."""
    came: collections.Counter[str] = collections.Counter()
    names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        _idle(at, producer, dice.uniform(*PAUSE))
        [name] = dice.choices(names, weights)
        told = FAULTS[name][0](at, dice, producer)
        came[name] += 1
        print(f"{time.monotonic() - start:7.1f} s  {name} {told}", flush=True)
    return came


def _idle(at: World, producer: Producer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        at.fleet.replace_dead()
        look(producer.load)
        time.sleep(min(left, 1.0))


def look(load: Load) -> None:
    """Note the reason of each waiting job, and the jobs that wait without a reason."""
    with suppress(NexusError):
        now = engine.claims.now()
        for claim in engine.claims.waiting(500):
            if claim.fields.get("state") != "waiting":
                continue  # it went on after its key was read
            reason = claim.fields.get("wait_reason", "")
            load.reasons[reason] += 1
            load.longest[reason] = max(load.longest.get(reason, 0.0), now - claim.enqueued_at)
            if not reason:
                load.unexplained.add(claim.job_id)
        for claim in engine.claims.pending("derive", 500):
            if now - float(claim.fields.get("published_at", 0)) / 1000 > OVERDUE_SECONDS:
                load.unexplained.add(claim.job_id)


def settle(at: World, load: Load) -> float:
    """Wait until all work is done, or until ``GIVE_UP_SECONDS`` pass without progress. Returns the seconds."""
    start = moved = time.monotonic()
    seen: tuple[int, ...] = ()
    for worker, _ in at.fleet.alive:
        thaw(worker)
    at.fleet.end_rollout()
    while time.monotonic() - moved < GIVE_UP_SECONDS:
        at.fleet.replace_dead()
        look(load)
        now = done(at.here)
        if now[0] + now[1] >= load.said and now[2] >= load.marks:
            break
        if now != seen:
            seen, moved = now, time.monotonic()
        time.sleep(0.5)
    return time.monotonic() - start


def done(here: Sandbox) -> tuple[int, int, int]:
    """The number of derived messages, of messages that gave up, and of marks."""
    [(derived, dead)] = here.sql(_DERIVED)
    return int(derived), int(dead), int(here.sql("SELECT count(*) FROM chaos_marks")[0][0])


def main() -> None:
    """Print the schedule as it happens, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--before", default="", help="a commit; a worker of each pool runs it beside the present ones")
    parser.add_argument("--log", type=Path, help="a file for the workers' log")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    dice = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexus-chaos-")))
        servers = embedded.ensure(folder / "servers")
        stack.callback(embedded.stop, folder / "servers")
        make_template(servers)
        old = stack.enter_context(earlier_commit(folder, options.before))
        pair = stack.enter_context(redis_pair(folder, _free_ports()))
        wire = stack.enter_context(proxy(pair.socket(0)))
        here = stack.enter_context(sandbox(servers, NEXUS_REDIS_URL=f"redis://127.0.0.1:{wire.port}/0"))
        print(calibration(servers))
        print(f"seed {seed}, {options.minutes:g} minutes; the second Redis' clock is", end=" ")
        print("behind" if pair.clocks_differ else "the same (no libfaketime)", flush=True)
        here.sql(chaos_jobs.TABLE)
        for namespace in (*NAMESPACES, FLOODING):
            Nexus().create_namespace(namespace)
        at = stack.enter_context(world(here, pair, wire, old, options.log or folder / "workers.log"))
        for flavour in (*POOLS, *POOLS, *((f"{pool} old" for pool in POOLS) if old else ())):
            at.fleet.start(flavour)
        with _producing(here, dice) as producer:
            came = torment(at, producer, options.minutes * 60, dice)
        _report(at, producer.load, came, settle(at, producer.load))


@contextmanager
def _producing(here: Sandbox, dice: random.Random) -> Iterator[Producer]:
    producer = Producer(here, random.Random(dice.random()))
    producer.start()
    try:
        yield producer
    finally:
        producer.stopped.set()
        producer.join(60)


def _report(at: World, load: Load, came: collections.Counter[str], seconds: float) -> None:
    derived, dead, marks = done(at.here)
    letters = at.here.sql("SELECT kind, count(*) FROM dead_letters GROUP BY kind ORDER BY kind")
    rows: list[list[str | int]] = [
        ["faults", ", ".join(f"{count} {name}" for name, count in came.most_common())],
        ["messages stored, derived", f"{load.said:,}, {derived:,}"],
        ["marks wanted, made", f"{load.marks:,}, {marks:,}"],
        ["lost", load.said - derived - dead + load.marks - marks],
        ["with effects twice", int(at.here.sql(_TWICE)[0][0])],
        ["dead letters", ", ".join(f"{count} {kind}" for kind, count in letters) or 0],
        ["waits without a reason", len(load.unexplained)],
        ["oldest waiting job by reason", ", ".join(f"{why} {s:.0f} s" for why, s in sorted(load.longest.items()))],
        ["workers that ended by themselves", at.fleet.exits],
        ["after the last fault, all done in", f"{seconds:.0f} s"],
    ]
    print(table(["", ""], rows))


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
