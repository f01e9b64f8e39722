"""The cost of asking for a job: new, duplicate and in bulk, beside stock Celery, celery-once and celery-singleton.

    pip install celery-once celery-singleton
    python -m benchmarks.enqueue [--quick]

All systems publish to the same Redis without a worker, in alternating series of 200 calls: other load on the machine
hits all systems. An empty script, called by redis-py, is the lower bound for any claim. The second part is the cost of
a call with 10 and with a million claims pending, and the bytes per claim.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from benchmarks.machine import calibration, table
from nexus_tasks import derive_memory, embedded
from nexus_tasks.deployment import default_deployment
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.embedded.urls import celery_url, client_url
from nexus_tasks.tasks.derive_memory import DeriveMemory
from tests.databases import make_template
from tests.sandbox import Sandbox, sandbox

TURN = 200  # calls in a series
Call = Callable[[int], object]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the calls, 100,000 claims instead of a million"
    )
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers) as here:
                print(table(["system", "new", "duplicate"], _one_by_one(servers, turns=5 if quick else 50)))
            with sandbox(servers) as here:
                print(_in_bulk(servers, calls=2_000 if quick else 10_000, runs=3))
            with sandbox(servers) as here:
                print(_with_many_pending(here, 100_000 if quick else 1_000_000))
        finally:
            embedded.stop(Path(folder))


def _peers(servers: ServerAddresses) -> dict[str, Call]:
    """By system, the function ``call``: ``call(n)`` asks for the n-th job."""
    app = Celery("peers", set_as_current=False)
    app.conf.update(
        broker_url=celery_url(servers.redis_url),
        task_ignore_result=True,
        broker_transport_options={"global_keyprefix": "peers:"},
        singleton_backend_url=client_url(servers.redis_url),
        # celery-once accepts no database number in the address of a socket.
        ONCE={
            "backend": "celery_once.backends.Redis",
            "settings": {"url": celery_url(servers.redis_url).split("?")[0]},
        },
    )

    def body(namespace: str, memory_id: int, observer: str) -> None:
        """Never runs."""

    tasks = {
        "stock Celery": app.task(name="peers.stock", shared=False)(body),
        "celery-once": app.task(name="peers.once", shared=False, base=QueueOnce, once={"graceful": True})(body),
        "celery-singleton": app.task(name="peers.singleton", shared=False, base=Singleton)(body),
        "nexus-tasks": derive_memory,
    }
    nothing = default_deployment().claims.redis.register_script("return 1")
    return {
        **{
            name: lambda n, task=task: task.delay(namespace="bench", memory_id=n, observer="assistant")
            for name, task in tasks.items()
        },
        "one empty script": lambda n: nothing(args=[n]),
    }


def _one_by_one(servers: ServerAddresses, *, turns: int) -> list[list[object]]:
    """Calls per second, and the ratio to stock Celery, which has no duplicates: every call publishes a new job."""
    calls, numbers = _peers(servers), itertools.count(1)
    for call in calls.values():
        call(next(numbers))
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for _ in range(turns):
        for name, call in calls.items():
            spent[name, "new"] += _seconds(call, itertools.islice(numbers, TURN))
            spent[name, "duplicate"] += _seconds(call, itertools.repeat(next(numbers), TURN + 1), skip=1)
    stock = (spent["stock Celery", "new"] + spent["stock Celery", "duplicate"]) / 2
    return [[name, *(_rate(spent[name, what], turns * TURN, stock) for what in ("new", "duplicate"))] for name in calls]


def _seconds(call: Call, numbers: Iterator[int], *, skip: int = 0) -> float:
    for n in itertools.islice(numbers, skip):
        call(n)
    start = time.perf_counter()
    for n in numbers:
        call(n)
    return time.perf_counter() - start


def _rate(seconds: float, calls: int, stock: float) -> str:
    return f"{calls / seconds:,.0f}/s ({stock / seconds:.2f}×)"


def _in_bulk(servers: ServerAddresses, *, calls: int, runs: int) -> str:
    stock, ratios, rates = _peers(servers)["stock Celery"], [], []
    for run in range(runs):
        loop = _seconds(stock, iter(range(calls)))
        first = 1 + run * calls
        asked: list[dict[str, Any]] = [
            {"namespace": "bench", "memory_id": n, "observer": "assistant"} for n in range(first, first + calls)
        ]
        start = time.perf_counter()
        made = derive_memory.enqueue_many(asked)
        seconds = time.perf_counter() - start
        assert all(result.created for result in made)
        ratios.append(loop / seconds)
        rates.append(calls / seconds)
    return (
        f"\nenqueue_many of {calls:,}: {statistics.median(rates):,.0f}/s, "
        f"{statistics.median(ratios):.1f}× stock .delay() in a loop (bound 6×; {runs} runs: "
        f"{', '.join(f'{ratio:.1f}' for ratio in sorted(ratios))})"
    )


def _with_many_pending(here: Sandbox, many: int) -> str:
    """Cost of a call with 10 and with ``many`` claims pending, and the bytes of a claim in Redis."""
    claims, client = default_deployment().claims, here.redis()
    numbers = itertools.count(1)
    model = derive_memory.request_for(DeriveMemory(namespace="bench", memory_id=10**9, observer="assistant"))

    def fill(wanted: int) -> None:
        # Only claims are made: the length of the message list does not change the cost of a call.
        for start in range(0, wanted, 500):
            claims.claim(
                [
                    replace(model, id=f"fill-{n}", scope=model.scope.replace(str(10**9), str(10**9 + n)))
                    for n in itertools.islice(filled, min(500, wanted - start))
                ]
            )

    def cost() -> float:
        times = []
        for n in itertools.islice(numbers, 2_000):
            start = time.perf_counter()
            derive_memory.delay(namespace="bench", memory_id=n, observer="assistant")
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    filled = itertools.count(1)
    fill(10)
    cost()
    few, before = cost(), _memory(client)
    fill(many)
    after, much = _memory(client), cost()
    client.flushdb(asynchronous=True)  # the sandbox would delete a million keys in one script, which takes too long
    return (
        f"\none .delay(): {few * 1e6:.0f} µs with few claims pending, {much * 1e6:.0f} µs with {many:,}: "
        f"{much / few:.2f}× (bound 1.2×)\nbytes per claim in Redis, its indexes included: {(after - before) / many:.0f}"
    )


def _memory(client: Any) -> int:
    return int(client.info("memory")["used_memory_dataset"])


if __name__ == "__main__":
    main()
