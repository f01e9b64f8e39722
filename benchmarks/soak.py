"""Run tenants, a flood and faults for a while, and look whether memory, Redis keys or connections grow.

    python -m benchmarks.soak [--minutes 30]

Six tenants write two messages a second each, in sessions of 20, and search. A seventh floods: 300 messages at once,
every 20 s. Two workers and a beat run with the offline model. Every 15 s a fault comes, in turn: the second worker is
killed and another one starts, all connections to Postgres are ended, all connections to Redis are ended, beat is
killed.

Every 3 s a sample is taken. The first third of the time warms everything up. Over the rest, the growth of each figure
is the median slope of all pairs of samples, times the duration: a peak or a dip changes it little. At the end
everything must become memory, without a dead letter. The command fails when a figure grows by more than its bound.

Done markers of finished jobs are counted apart, because each lasts for 15 minutes.

For the connections to Postgres, a sample's value is the highest number of the last 60 s. One of the faults ends all
connections once in 60 s, and then their number climbs again. A slope over single numbers would depend on where in the
climb the first and the last sample are.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redis.exceptions import RedisError

from benchmarks.machine import resident_mib, table
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import NexusError
from tests.databases import make_template
from tests.sandbox import Sandbox, Worker, eventually, sandbox

TENANTS = tuple(f"tenant-{n}" for n in range(6))
SESSION, EVERY = 20, 0.5  # messages of a session; seconds between two messages of a tenant
FLOOD, FLOOD_EVERY = 300, 20.0
FAULT_EVERY, SAMPLE_EVERY = 15.0, 3.0
ROUND = 4 * FAULT_EVERY  # in so many seconds each kind of fault comes once
MOST_SAMPLES = 300  # the slopes of all pairs of more samples would take minutes


@dataclass(frozen=True)
class Bound:
    """A figure, and how much it may grow after the warm-up: an absolute part, and a share of its mean.

    ``peak_of``: a sample's value is the highest one of the last so many seconds. 0: its own value.
    """

    name: str
    absolute: float
    share: float = 0.0
    peak_of: float = 0.0

    def most(self, mean: float) -> float:
        """The largest growth."""
        return self.absolute + self.share * mean


BOUNDS = (
    Bound("worker, MiB", 12, 0.03),
    Bound("producer, MiB", 12, 0.03),
    Bound("Redis keys without done markers", 300, 0.2),
    Bound("Postgres connections", 4, 0.1, peak_of=ROUND),
    Bound("dead rows in Postgres, % of rows", 8),
    Bound("oldest message not derived, s", 10),
)


@dataclass
class Soak:
    """One run: its deployment, and what was seen."""

    here: Sandbox
    seconds: float
    warm_up: float  # seconds, of those above
    stop: threading.Event = field(default_factory=threading.Event)
    written: int = 0
    refused: int = 0
    faults: int = 0
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    # --- what happens -------------------------------------------------------------------------------------------------
    def tenant(self, name: str) -> None:
        """Write a message, sometimes search, and end each session."""
        nexus, session = Nexus(self.here.deployment), 0
        for number in itertools.count():
            if self.stop.wait(EVERY):
                return
            session = number // SESSION
            text = f"In week {session} I read {number % SESSION + 3} pages of the book {name}-{number}."
            last = number % SESSION == SESSION - 1
            self.try_(
                lambda key=f"s{session}", text=text, n=number, last=last: self.write(nexus, name, key, [text], n, last)
            )
            if number % 4 == 0:
                self.try_(lambda: nexus.search(name, "which book did I read?"))

    def flood(self) -> None:
        """Write hundreds of messages at once, again and again."""
        nexus = Nexus(self.here.deployment)
        for number in itertools.count():
            texts = [f"Sensor {n} reports {number * FLOOD + n} units." for n in range(FLOOD)]
            self.try_(lambda key=f"f{number}", t=texts: self.write(nexus, "flood", key, t, 0, True))
            if self.stop.wait(FLOOD_EVERY):
                return

    def write(self, nexus: Nexus, name: str, session: str, texts: Sequence[str], first: int, last: bool) -> None:
        """Store messages with ids, so that a repeated call stores none twice."""
        said = [Message(author="ann", content=text, id=f"{session}-{first + n}") for n, text in enumerate(texts)]
        nexus.ingest(name, session, said, end=last)
        with self.lock:
            self.written += len(said)

    def try_(self, call: Callable[[], object]) -> None:
        """Call until the call succeeds. A fault may refuse it."""
        for _ in range(20):
            try:
                call()
                return
            except NexusError:
                self.refused += 1
                time.sleep(0.3)

    def faulty(self, beat: Callable[[], Worker]) -> None:
        """Let faults come, one kind after the other."""
        state = {"worker": self.here.worker(concurrency=8), "beat": beat()}

        def kill_worker() -> None:
            state["worker"].kill()
            state["worker"] = self.here.worker(concurrency=8)

        def kill_beat() -> None:
            state["beat"].kill()
            state["beat"] = beat()

        for fault in itertools.cycle((kill_worker, self.end_postgres_sessions, self.end_redis_sessions, kill_beat)):
            if self.stop.wait(FAULT_EVERY):
                return
            fault()
            self.faults += 1

    def end_postgres_sessions(self) -> None:
        """As a failover does."""
        self.try_(
            lambda: self.here.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )

    def end_redis_sessions(self) -> None:
        """As a restart of a proxy does."""
        self.here.redis().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    # --- what is seen -------------------------------------------------------------------------------------------------
    def sample(self, worker: int, producer: int) -> dict[str, float]:
        """The figures now."""
        redis = self.here.redis()
        keys = list(redis.scan_iter(f"{self.here.name}:*", count=5_000))
        done = sum(key.startswith(f"{self.here.name}:done:") for key in keys)
        [(connections,)] = self.here.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        [(dead, live)] = self.here.sql("SELECT sum(n_dead_tup), sum(n_live_tup) FROM pg_stat_user_tables")
        [(oldest,)] = self.here.sql(
            "SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0) FROM derivations WHERE state = 'wanted'"
        )
        return {
            "worker, MiB": resident_mib(worker),
            "producer, MiB": resident_mib(producer),
            "Redis keys without done markers": len(keys) - done,
            "done markers": done,
            "Postgres connections": float(connections),
            "dead rows in Postgres, % of rows": 100 * float(dead) / max(float(dead) + float(live), 1.0),
            "oldest message not derived, s": float(oldest),
        }

    def watch(self, worker: int, producer: int) -> None:
        """Take samples until the time is over."""
        start = time.monotonic()
        while (at := time.monotonic() - start) < self.seconds:
            try:
                self.samples.append((at, self.sample(worker, producer)))
            except (NexusError, RedisError):  # a fault has ended this connection too
                continue
            time.sleep(SAMPLE_EVERY)


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """How much a figure grows over its samples: the median slope of all pairs, times the duration."""
    kept = samples[:: len(samples) // MOST_SAMPLES + 1]
    slopes = [(b - a) / (then - now) for (now, a), (then, b) in itertools.combinations(kept, 2)]
    return statistics.median(slopes) * (samples[-1][0] - samples[0][0])


def peaks(samples: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """Each sample with the highest value of the ``seconds`` before it, its own among them."""
    return [(at, max(value for then, value in samples if at - seconds < then <= at)) for at, _ in samples]


def judged(soak: Soak) -> tuple[list[list[object]], list[str]]:
    """The table, and the names of the figures that grow too much."""
    rows, bad = list[list[object]](), list[str]()
    for bound in BOUNDS:
        values = [(at, seen[bound.name]) for at, seen in soak.samples]
        if bound.peak_of:
            values = peaks(values, bound.peak_of)
        values = [(at, value) for at, value in values if at >= soak.warm_up]
        mean = statistics.fmean(value for _, value in values)
        grown, most = growth(values), bound.most(mean)
        if grown > most:
            bad.append(bound.name)
        rows.append(
            [bound.name, f"{mean:,.1f}", f"{grown:+,.1f}", f"≤ {most:,.1f}", "missed" if bound.name in bad else "met"]
        )
    return rows, bad


def start_beat(here: Sandbox) -> Worker:
    """A beat of the deployment."""
    log = here.folder / f"beat-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "nexus_tasks", "beat", "--loglevel", "WARNING"],
            env=here.environment,
            cwd=here.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    found = Worker(process, log)
    here.workers.append(found)
    return found


def soaked(
    servers: ServerAddresses, minutes: float, warm_up: float | None = None
) -> tuple[Soak, list[list[object]], list[str]]:
    """Run the soak, then wait until everything is derived. Returns the run, its table, and what is wrong.

    ``warm_up``: how many of the minutes come before the first sample that counts. The default is a third of them.
    """
    with sandbox(servers, NEXUS_MODEL="offline") as here:
        warm_up = minutes / 3 if warm_up is None else warm_up
        soak, steady = Soak(here, minutes * 60, warm_up * 60), here.worker(concurrency=8)
        threads = [
            *(threading.Thread(target=soak.tenant, args=(name,), daemon=True) for name in TENANTS),
            threading.Thread(target=soak.flood, daemon=True),
            threading.Thread(target=soak.faulty, args=(lambda: start_beat(here),), daemon=True),
        ]
        for one in threads:
            one.start()
        try:
            soak.watch(steady.process.pid, os.getpid())
        finally:
            soak.stop.set()
            for one in threads:
                one.join(60)
        rows, bad = judged(soak)
        try:
            eventually(lambda: _is_derived(soak), within=180)
        except AssertionError:
            bad.append("messages that are not derived at the end")
        if dead := here.sql("SELECT kind, error_type, message FROM dead_letters"):
            bad.append(f"dead letters: {dead[:3]}")
        if steady.process.poll() is not None:
            bad.append("the first worker has ended")
        [(stored,)] = here.sql("SELECT count(*) FROM memories WHERE level = 'raw'")
        if stored != soak.written:
            bad.append(f"{soak.written:,} messages written, {stored:,} stored")
        return soak, rows, bad


def _is_derived(soak: Soak) -> bool:
    Nexus(soak.here.deployment).search(TENANTS[0], "book")  # stores what faults have left in the session buffer
    return soak.here.sql("SELECT count(*) FROM derivations WHERE state = 'wanted'") == [(0,)]


def main() -> None:
    """Print the table. Exits with 1 when a figure grows too much or a message is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-soak-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            soak, rows, bad = soaked(servers, options.minutes)
        finally:
            embedded.stop(Path(folder))
    done = soak.samples[-1][1]["done markers"]
    print(f"{soak.written:,} messages in {options.minutes:g} minutes, {soak.faults} faults, {done:,.0f} done markers")
    print(f"{soak.refused} calls were refused by a fault and repeated")
    print(table(["figure", "mean", "growth in the last two thirds", "bound", ""], rows))
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
