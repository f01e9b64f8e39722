"""How long a tenant waits behind its neighbours, beside plain Celery; and what a long line costs.

    python -m benchmarks.neighbours [--quick] [--concurrency 16 32]

One worker process with threads runs jobs that sleep 0.2 s. Both systems publish to the same Redis, one after the other.

- One job of tenant B behind 3,000 and behind 100,000 jobs of tenant A. Bound: two mean durations of A's jobs plus 1 s.
- Ten tenants flood (1,000 jobs each), and 1,000 small tenants ask for one job each, 10 in a second. Bound: p95 3 s.
- 100,000 jobs wait while every slot is busy with a long job. Bound: 20 Redis commands a second and worker, those inside
  scripts included, beside what the same worker sends with no job waiting.

A job's wait is the time from the request to the first line of the job. The mean duration of A's jobs is the time for
which a thread is busy with one: threads times seconds, divided by the jobs that began.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import neighbour_jobs
from benchmarks.machine import calibration, table
from nexus_tasks import embedded
from nexus_tasks.embedded.urls import celery_url
from tests.databases import make_template
from tests.sandbox import Sandbox, Worker, eventually, sandbox

NAP = 200  # ms
ROOT = Path(__file__).parents[1]
Job = tuple[str, int, int]  # tenant, number, ms


@dataclass(frozen=True, kw_only=True)
class System:
    """A system under test."""

    name: str
    app: str  # its Celery application
    ask: Callable[[Iterable[Job]], object]


def ours() -> System:
    """Jobs of nexus-tasks."""

    def ask(jobs: Iterable[Job]) -> None:
        neighbour_jobs.nap.enqueue_many([{"namespace": t, "n": n, "milliseconds": ms} for t, n, ms in jobs])

    return System(name="nexus-tasks", app="nexus_tasks", ask=ask)


def plain(here: Sandbox) -> System:
    """Tasks of plain Celery."""
    neighbour_jobs.plain.conf.broker_url = celery_url(here.servers.redis_url)

    def ask(jobs: Iterable[Job]) -> None:
        for job in jobs:
            neighbour_jobs.plain_nap.delay(*job)

    return System(name="plain Celery", app="benchmarks.neighbour_jobs:plain", ask=ask)


def work(here: Sandbox, system: System, concurrency: int) -> Worker:
    """Start the system's worker."""
    here.environment["PYTHONPATH"] = str(ROOT)
    config = {} if system.app.endswith(":plain") else {"CELERY_CONFIG_MODULE": "benchmarks.neighbour_config"}
    return here.worker(app=system.app, concurrency=concurrency, **config)


def begun(here: Sandbox, tenant: str) -> dict[int, float]:
    """When each job of a tenant began."""
    lines = here.redis().lrange(f"{here.name}:begun:{tenant}", 0, -1)
    return {int(n): float(at) for n, at in (line.split() for line in lines)}


def behind(here: Sandbox, system: System, many: int, concurrency: int, times: int) -> list[object]:
    """Wait of single jobs of B behind ``many`` jobs of A."""
    for start in range(0, many, 5_000):
        system.ask(("a", n, NAP) for n in range(start, min(start + 5_000, many)))
    work(here, system, concurrency)
    eventually(lambda: len(begun(here, "a")) >= 3 * concurrency)
    waits, since, before = [], time.time(), len(begun(here, "a"))
    patience = 120.0
    for n in range(times):
        asked = time.time()
        system.ask([("b", n, NAP)])
        deadline = asked + patience
        while n not in begun(here, "b") and time.time() < deadline:
            time.sleep(0.01)
        waits.append(begun(here, "b").get(n, float("inf")) - asked)
        if waits[-1] == float("inf"):
            break
        time.sleep(0.5)
    mean = concurrency * (time.time() - since) / (len(begun(here, "a")) - before)
    bound = 2 * mean + 1
    worst = max(waits)
    shown = f"{worst:.2f} s" if worst < patience else f"> {patience:.0f} s"
    return [system.name, concurrency, f"{many:,}", f"{mean:.2f} s", shown, f"{bound:.2f} s", _verdict(worst <= bound)]


def flooded(here: Sandbox, system: System, concurrency: int, small: int) -> list[object]:
    """Waits of small tenants between ten that flood."""
    flood = itertools.product(range(1_000), range(10))
    system.ask((f"flood{tenant}", n, NAP) for n, tenant in flood)
    work(here, system, concurrency)
    eventually(lambda: len(begun(here, "flood0")) >= 2)
    asked: dict[str, float] = {}
    start = time.time()
    for n in range(small):
        time.sleep(max(start + n / 10 - time.time(), 0))
        asked[f"small{n}"] = time.time()
        system.ask([(f"small{n}", 0, NAP)])
    give_up = time.time() + 20
    while not all(begun(here, tenant) for tenant in list(asked)[-20:]) and time.time() < give_up:
        time.sleep(0.2)
    waits = sorted(begun(here, tenant).get(0, float("inf")) - at for tenant, at in asked.items())
    p50, p95 = statistics.median(waits), waits[int(len(waits) * 0.95)]
    return [system.name, concurrency, f"{small:,}", _seconds(p50), _seconds(p95), "3 s", _verdict(p95 <= 3)]


def idle_cost(here: Sandbox, concurrency: int, many: int, seconds: float) -> list[object]:
    """Redis commands per second with every slot busy: without and with ``many`` jobs waiting."""
    system = ours()
    work(here, system, concurrency)
    cap = 16
    system.ask(("busy", n, 600_000) for n in range(cap))
    eventually(lambda: len(begun(here, "busy")) == min(cap, concurrency))
    quiet = _commands_per_second(here, seconds)
    for start in range(cap, many, 5_000):
        system.ask(("busy", n, NAP) for n in range(start, min(start + 5_000, many)))
    time.sleep(3)
    waiting = _commands_per_second(here, seconds)
    added = waiting - quiet
    return [concurrency, f"{many:,}", f"{quiet:.1f}/s", f"{waiting:.1f}/s", f"{added:+.1f}/s", _verdict(added <= 20)]


def _commands_per_second(here: Sandbox, seconds: float) -> float:
    def commands() -> int:
        return sum(int(of["calls"]) for of in here.redis().info("commandstats").values())

    before = commands()
    time.sleep(seconds)
    return (commands() - before) / seconds


def _seconds(wait: float) -> str:
    return f"{wait:.2f} s" if wait < float("inf") else "did not begin"


def _verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3,000 jobs of A and 200 small tenants only")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--only", choices=["behind", "flooded", "cost"])
    options = parser.parse_args()
    crowds = [3_000] if options.quick else [3_000, 100_000]
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers), f"load {os.getloadavg()[0]:.1f}", sep=", ", flush=True)
            measures: list[tuple[str, list[str], list[Callable[[], list[object]]]]] = []

            def on(measure: Callable[..., list[object]], peer: bool, *values: Any) -> Callable[[], list[object]]:
                def run() -> list[object]:
                    with sandbox(servers) as here:
                        try:
                            return measure(here, plain(here) if peer else ours(), *values)
                        finally:
                            _empty(here)

                return run

            measures.append(
                (
                    "behind",
                    ["system", "threads", "jobs of A", "mean of A", "longest wait of B", "bound", "holds"],
                    [
                        on(behind, peer, many, threads, 1 if peer else 10)
                        for many in crowds
                        for threads in options.concurrency
                        for peer in (True, False)
                    ],
                )
            )
            measures.append(
                (
                    "flooded",
                    ["system", "threads", "small tenants", "p50", "p95", "bound", "holds"],
                    [
                        on(flooded, peer, threads, 200 if options.quick or peer else 1_000)
                        for threads in options.concurrency
                        for peer in (True, False)
                    ],
                )
            )
            measures.append(
                (
                    "cost",
                    ["threads", "jobs waiting", "commands without", "commands with", "added", "holds"],
                    [_cost(servers, threads, 3_000 if options.quick else 100_000) for threads in options.concurrency],
                )
            )
            for name, headings, runs in measures:
                if options.only in (None, name):
                    print("\n" + table(headings, [_shown(run()) for run in runs]), flush=True)
        finally:
            embedded.stop(Path(folder))


def _shown(row: list[object]) -> list[object]:
    """Print a row on stderr as soon as it is measured, because all rows together take 15 minutes."""
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def _cost(servers: Any, threads: int, many: int) -> Callable[[], list[object]]:
    def run() -> list[object]:
        with sandbox(servers) as here:
            try:
                return idle_cost(here, threads, many, 20.0)
            finally:
                _empty(here)

    return run


def _empty(here: Sandbox) -> None:
    """End the workers, and empty Redis: the sandbox would delete 100,000 keys in one script, which takes too long."""
    workers: Sequence[Worker] = here.workers
    for worker in workers:
        worker.kill()
    here.redis().flushdb(asynchronous=True)


if __name__ == "__main__":
    main()
