"""The cost of search and context as one namespace grows: milliseconds, this process's CPU, and disk.

    python -m benchmarks.scale [--sizes 10000,100000,1000000] [--questions 300] [--embedder hashing]

The namespace consists of copies of LoCoMo's turns and observations with other names and numbers (see
``benchmarks.crowd``). LoCoMo's questions are asked one after the other. ``own CPU`` is this process's part of a call;
the rest is Postgres. "one subject" searches the memories of one speaker, "one session" the memories of one session.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.crowd import fill
from benchmarks.machine import calibration, table
from benchmarks.retrieval import LOCOMO, settings
from nexus_tasks import Nexus, embedded
from nexus_tasks.deployment import default_deployment
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.storage import namespaces
from nexus_tasks.storage.searching import upkeep
from tests.databases import make_template
from tests.sandbox import sandbox

NAMESPACE = "crowd"
PARTS = {
    "postings": "SELECT pg_total_relation_size('postings')",
    "vector index": "SELECT coalesce(sum(pg_relation_size(oid)), 0) FROM pg_class"
    " WHERE relname LIKE 'ix\\_vectors\\_%'",
    "vectors": "SELECT pg_table_size('embeddings')",
    "all": "SELECT pg_database_size(current_database())",
}


def timed(calls: Sequence[Callable[[], Any]]) -> tuple[float, float, float]:
    """Milliseconds per call: p50, p95, and the mean CPU time of this process."""
    for call in calls[:20]:
        call()  # warms connections, statements and pages up, as in a running system
    waits = []
    cpu = time.process_time()
    for call in calls:
        start = time.perf_counter()
        call()
        waits.append((time.perf_counter() - start) * 1000)
    own = (time.process_time() - cpu) * 1000 / len(calls)
    waits.sort()
    return statistics.median(waits), waits[int(len(waits) * 0.95)], own


def ways(asked: Sequence[str], people: Sequence[str], sessions: Sequence[str]) -> dict[str, list[Callable[[], Any]]]:
    """The calls to measure: for each way of asking, one call per question."""
    nexus = Nexus()
    every = list(zip(asked, people, sessions, strict=True))
    return {
        "search": [lambda q=q: nexus.search(NAMESPACE, q) for q in asked],
        "search, level raw": [lambda q=q: nexus.search(NAMESPACE, q, levels=["raw"]) for q in asked],
        "search, one subject": [lambda q=q, p=p: nexus.search(NAMESPACE, q, subject=p) for q, p, _ in every],
        "search, one session": [lambda q=q, s=s: nexus.search(NAMESPACE, q, session_key=s) for q, _, s in every],
        "context, query": [lambda q=q: nexus.context(NAMESPACE, query=q) for q in asked],
        "context, session": [lambda q=q, s=s: nexus.context(NAMESPACE, query=q, session_key=s) for q, _, s in every],
        "context, no query": [lambda p=p: nexus.context(NAMESPACE, subject=p) for p in people],
    }


def measured(servers: ServerAddresses, size: int, count: int, embedder: str) -> tuple[list[list[object]], list[object]]:
    """The times and the sizes on disk of one namespace of ``size`` memories."""
    with sandbox(servers, **settings(embedder)):
        here = default_deployment()
        with here.database.transaction() as tx:
            known = namespaces.ensure(tx, NAMESPACE)
        start = time.perf_counter()
        asked = fill(here.database, here.embedder, known.id, size, LOCOMO)
        filled = time.perf_counter() - start
        print(f"{size:,}: filled in {filled:.0f} s", file=sys.stderr)
        did = upkeep.run(here.database)
        print(f"{size:,}: {did} in {time.perf_counter() - start - filled:.0f} s", file=sys.stderr)
        asked = (asked * (count // len(asked) + 1))[:count]
        with here.database.transaction() as tx:
            drawn = "SELECT {0} FROM {1} ORDER BY md5({0}) LIMIT :n"
            people = list(tx.scalars(text(drawn.format("subject", "perspectives")), {"n": count}))
            sessions = list(tx.scalars(text(drawn.format("session_key", "sessions")), {"n": count}))
            disk = [f"{tx.scalar(text(sql)) / 2**20:,.0f} MiB" for sql in PARTS.values()]
        people = (people * (count // len(people) + 1))[:count]
        sessions = (sessions * (count // len(sessions) + 1))[:count]
        rows: list[list[object]] = []
        for name, calls in ways(asked, people, sessions).items():
            half, most, own = timed(calls)
            rows.append([name, f"{size:,}", f"{half:.1f} ms", f"{most:.1f} ms", f"{own:.1f} ms"])
            print(rows[-1], file=sys.stderr)
        return rows, [f"{size:,}", *disk, f"{size / filled:,.0f}/s"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--embedder", default="hashing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            sizes = [int(size) for size in options.sizes.split(",")]
            found = [measured(servers, size, options.questions, options.embedder) for size in sizes]
        finally:
            embedded.stop(Path(folder))
    rows = [row for group in zip(*(times for times, _ in found), strict=True) for row in group]
    print(table(["call", "memories", "p50", "p95", "own CPU"], rows))
    print()
    print(table(["memories", *PARTS, "written"], [sizes for _, sizes in found]))


if __name__ == "__main__":
    main()
