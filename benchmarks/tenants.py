"""What row-level security costs: the same searches by a client without a limit, and by one with a limit.

    python -m benchmarks.tenants [--quick] [--plans]

Both clients search in one process, in turn, in a namespace of 20,000 messages beside another of 5,000. The table has
the median and the shortest time of a search and of ``memory()``, which reads one row, and what the limit adds.
``--plans`` prints how Postgres answers the longest statement of a search, with and without the policies.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from benchmarks.machine import calibration, table
from nexus_tasks import Nexus, embedded
from nexus_tasks.storage import tenancy
from tests.databases import make_template
from tests.integration.inline import work
from tests.sandbox import Sandbox, sandbox

MINE, THEIRS = "acme", "others"
LETTERS = "bcdfghklmnprst"
WORDS = [f"{one}a{two}o{three}" for one in LETTERS for two in LETTERS for three in LETTERS[:3]]
Timing = dict[str, list[float]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--plans", action="store_true", help="print the plans of a search")
    given = parser.parse_args()
    share = 10 if given.quick else 1
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers) as here:
                _fill(MINE, 20_000 // share)
                _fill(THEIRS, 5_000 // share)
                work("embed_memories")
                here.sql("ANALYZE")
                print(table(["call", "no limit", "limited", "more"], _measured()))
                if given.plans:
                    _print_plans(here)
        finally:
            embedded.stop(Path(folder))


def _fill(namespace: str, messages: int) -> None:
    rng = random.Random(namespace)
    for first in range(0, messages, 5_000):
        said = [
            {"content": f"{' '.join(rng.sample(WORDS, 8))} number {number}", "author": "ann", "id": str(number)}
            for number in range(first, min(first + 5_000, messages))
        ]
        Nexus().ingest(namespace, f"chat-{first}", said, observers=[])


def _measured() -> list[list[object]]:
    clients = {"no limit": Nexus(), "limited": Nexus(namespaces=[MINE])}
    rng, newest = random.Random(1), clients["limited"].memories(MINE, limit=1)[0].id
    questions = [" ".join(rng.sample(WORDS, 3)) for _ in range(150)]
    calls: dict[str, Callable[[Nexus, str], Any]] = {
        "search": lambda client, question: client.search(MINE, question),
        "memory": lambda client, _question: client.memory(MINE, newest),
    }
    rows: list[list[object]] = []
    for name, call in calls.items():
        taken: Timing = {one: [] for one in clients}
        for number, question in enumerate([*questions[:10], *questions]):
            order = list(clients.items()) if number % 2 else list(clients.items())[::-1]
            for one, client in order:
                start = time.perf_counter()
                call(client, question)
                if number >= 10:  # the first calls plan their statements
                    taken[one].append(time.perf_counter() - start)
        for word, figure in (("median", statistics.median), ("shortest", min)):
            before, after = figure(taken["no limit"]), figure(taken["limited"])
            more = f"{(after - before) * 1000:.1f} ms, {after / before - 1:.0%}"
            rows.append([f"{name}, {word}", f"{before * 1000:.1f} ms", f"{after * 1000:.1f} ms", more])
    return rows


def _print_plans(here: Sandbox) -> None:
    """The plans of the longest statement of a search."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> None:
        seen.append((statement, parameters))

    database = here.deployment.database
    event.listen(database.engine, "before_cursor_execute", note)
    Nexus().search(MINE, " ".join(WORDS[:3]))
    event.remove(database.engine, "before_cursor_execute", note)
    statement, parameters = max(seen, key=lambda one: len(one[0]))
    for limit in (None, (MINE,)):
        with database.transaction() as tx:
            if limit:
                tenancy.apply(tx, limit, reading=True)
            plan = tx.connection().exec_driver_sql(f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", parameters)
            print(f"\n{'Limited' if limit else 'No limit'}:", *plan.scalars(), sep="\n")


if __name__ == "__main__":
    main()
