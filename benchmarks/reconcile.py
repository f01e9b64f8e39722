"""How soon reconcile finds a lost claim among many wanted rows, and what a round costs when no claim is lost.

Rows in a database of its own want derivations, and Redis has a key for each of their claims. Then keys are deleted and
rounds are done without a pause. In a worker up to 10 s lie between the end of a round and the next round.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from nexus_tasks import embedded
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.worker.reconciler import EVERY, FURTHER, NEWEST, TRY_EVERY, Reconciler
from nexus_tasks.tasks import derive_memory
from tests.databases import make_template
from tests.derivations import want_derivations
from tests.sandbox import Sandbox, sandbox

NAMESPACE = "bench"
PAUSE = EVERY + TRY_EVERY  # seconds, the longest


def main() -> None:
    """Print the seconds of a round, and the longest time until a lost claim is asked for again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="wanted derivations")
    rows = parser.parse_args().rows
    home = Path(tempfile.mkdtemp(prefix="nexus-bench-"))
    try:
        servers = embedded.ensure(home)
        make_template(servers)
        with sandbox(servers) as here:
            _fill(here, rows)
            _measure(here, rows)
            here.redis().flushdb(asynchronous=True)  # the sandbox deletes key by key
    finally:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def _fill(here: Sandbox, rows: int) -> None:
    """Rows without messages, never analyzed; and keys that stand for their claims."""
    want_derivations(here, NAMESPACE, rows)
    pipe = here.redis().pipeline(transaction=False)
    for number in range(1, rows + 1):
        pipe.set(_key(number), "")
        if number % 10_000 == 0:
            pipe.execute()
    pipe.execute()


def _key(number: int) -> str:
    return default_deployment().claims.key(derive_memory.request(NAMESPACE, number, "assistant"))


def _measure(here: Sandbox, rows: int) -> None:
    reconciler = Reconciler(default_deployment().engine)
    seconds, made = _round(reconciler)
    assert made == 0
    print(f"a round over {min(rows, NEWEST + FURTHER):,} rows with claims: {seconds[0]:.1f} s ({seconds[1]:.1f} s CPU)")
    here.redis().delete(_key(rows - NEWEST + 1))
    seconds, made = _round(reconciler)
    assert made == 1
    print(f"a lost claim of the newest {NEWEST:,}: at most {PAUSE + seconds[0]:.0f} s")
    here.redis().delete(_key(1))
    waited, cpu, rounds, made = 0.0, 0.0, 0, 0
    while not made:
        seconds, made = _round(reconciler)
        waited, cpu, rounds = waited + PAUSE + seconds[0], cpu + seconds[1], rounds + 1
    print(f"a lost claim of the oldest row: {rounds} rounds, at most {waited:.0f} s ({cpu / waited:.1%} of a core)")
    here.redis().flushdb()
    start = time.perf_counter()
    _round(reconciler)
    again = default_deployment().claims.counts(NAMESPACE)
    print(f"after FLUSHDB: {sum(again.values()):,} jobs asked for again in {time.perf_counter() - start:.1f} s")


def _round(reconciler: Reconciler) -> tuple[tuple[float, float], int]:
    start, cpu = time.perf_counter(), time.process_time()
    made = reconciler.round()
    return (time.perf_counter() - start, time.process_time() - cpu), made


if __name__ == "__main__":
    main()
