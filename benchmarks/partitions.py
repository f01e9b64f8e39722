"""Whether tables that grow with messages should be partitioned by hash of the namespace: the same rows both ways.

    python -m benchmarks.partitions [--memories 1000000]

Two tables have the columns and indexes of ``memories`` and ``postings`` that matter here, with 8 words a memory in 200
namespaces. ``plain`` is as the package has them. ``16 parts`` and ``64 parts`` are partitioned by hash of
``namespace_id``, which must then be part of every unique key. Calls are timed at full size, on connections with
prepared statements, as the package has them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from benchmarks.machine import calibration, table
from nexus_tasks import embedded

NAMESPACES, WORDS, VOCABULARY = 200, 8, 20_000
STEP, CALLS, PER_CALL = 100_000, 300, 20

_KEY = f"hashtextextended('w' || floor(power(random(), 3) * {VOCABULARY})::int, n)"


class Variant:
    """One way to store the rows."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]], parts: int) -> None:
        self.connection, self.parts = connection, parts
        self.m, self.p = f"m{parts}", f"p{parts}"
        self.last = 0
        split = " PARTITION BY HASH (namespace_id)" if parts else ""
        first = "namespace_id, " if parts else ""
        for name, columns, key in (
            (self.m, "id bigint, namespace_id bigint, level text, content text, occurred_at timestamptz", "id"),
            (
                self.p,
                "key bigint, memory_id bigint, frequency smallint, length smallint, namespace_id int",
                "key, memory_id",
            ),
        ):
            more = " INCLUDE (frequency, length)" if name == self.p else ""
            self.run(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({first}{key}){more}){split}")
            for part in range(parts):
                self.run(
                    f"CREATE TABLE {name}_{part} PARTITION OF {name}"
                    f" FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
                )
        self.run(f"CREATE INDEX ON {self.m} (namespace_id, level, occurred_at)")

    def run(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Run a statement, and return its rows."""
        cursor = self.connection.execute(statement, values or None)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []

    def add(self, count: int, namespace: int | None = None) -> None:
        """Store memories with their words, of one namespace or of all."""
        owner = f"1 + i % {NAMESPACES}" if namespace is None else str(namespace)
        begin, self.last = self.last, self.last + count
        self.run(
            f"INSERT INTO {self.m} SELECT i, {owner}, CASE WHEN i % 2 = 0 THEN 'raw' ELSE 'explicit' END,"
            f" repeat(md5(i::text), 2), now() + i * interval '1 ms' FROM generate_series({begin + 1}, {self.last}) AS i"
        )
        self.run(
            f"INSERT INTO {self.p} SELECT {_KEY}, i, 1, {WORDS}, n"
            f" FROM (SELECT i, {owner} AS n FROM generate_series({begin + 1}, {self.last}) AS i) AS one,"
            f" generate_series(1, {WORDS}) ON CONFLICT DO NOTHING"
        )

    # --- calls --------------------------------------------------------------------------------------------------------
    def ingest(self, luck: random.Random) -> None:
        """Twenty memories of one namespace, in a transaction."""
        with self.connection.transaction():
            self.add(PER_CALL, luck.randint(1, NAMESPACES))

    def words(self, luck: random.Random) -> None:
        """The postings of five words of a namespace, as a search reads them."""
        n = luck.randint(1, NAMESPACES)
        keys = [f"w{int(luck.random() ** 3 * VOCABULARY)}" for _ in range(5)]
        also = " AND namespace_id = %s" if self.parts else ""
        self.run(
            f"SELECT memory_id, sum(frequency) FROM {self.p} WHERE key = ANY (ARRAY("
            f"SELECT hashtextextended(w, %s::bigint) FROM unnest(%s::text[]) AS w)){also}"
            " GROUP BY 1 ORDER BY 2 DESC LIMIT 100",
            (n, keys, n) if self.parts else (n, keys),
        )

    def newest(self, luck: random.Random) -> None:
        """The newest facts of a namespace."""
        self.run(
            f"SELECT id, content FROM {self.m} WHERE namespace_id = %s AND level = 'explicit'"
            " ORDER BY occurred_at DESC LIMIT 20",
            (luck.randint(1, NAMESPACES),),
        )

    def by_id(self, luck: random.Random) -> None:
        """A hundred memories by their ids alone, as evidence, citations and foreign keys look them up."""
        ids = [luck.randint(1, self.last) for _ in range(100)]
        self.run(f"SELECT id, content FROM {self.m} WHERE id = ANY (%s)", (ids,))


def timed(call: Callable[[random.Random], None]) -> str:
    """p50 and p95 of a call, in ms."""
    luck, waits = random.Random(7), []
    for number in range(CALLS + 20):
        start = time.perf_counter()
        call(luck)
        if number >= 20:  # the first ones warm up
            waits.append((time.perf_counter() - start) * 1000)
    waits.sort()
    return f"{statistics.median(waits):.2f} / {waits[int(len(waits) * 0.95)]:.2f} ms"


def took(action: Callable[[], object]) -> str:
    """Seconds."""
    start = time.perf_counter()
    action()
    return f"{time.perf_counter() - start:.1f} s"


def measured(variant: Variant, memories: int) -> list[object]:
    """The figures of one variant."""
    run = variant.run

    def fill() -> None:
        for _ in range(0, memories, STEP):
            variant.add(min(STEP, memories))

    def erase() -> None:
        for name in (variant.p, variant.m):
            run(f"DELETE FROM {name} WHERE namespace_id = 7")

    filled = took(fill)
    run(f"VACUUM (ANALYZE) {variant.m}, {variant.p}")
    calls = [timed(call) for call in (variant.ingest, variant.words, variant.newest, variant.by_id)]
    [(size,)] = run(
        "SELECT sum(pg_relation_size(oid)) / 1048576 FROM pg_class WHERE relkind IN ('r', 'i') AND relname ~ %s",
        (f"^[mp]{variant.parts}(_|$)",),
    )
    erased, whole = took(erase), took(lambda: run(f"VACUUM {variant.m}, {variant.p}"))
    return [filled, *calls, erased, whole, f"{size:,.0f} MiB"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memories", type=int, default=1_000_000)
    parser.add_argument("--parts", default="0,16,64")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            print(calibration(servers))
            address = servers.database_url.replace("postgresql+psycopg", "postgresql")
            with psycopg.connect(address, autocommit=True, prepare_threshold=3) as connection:
                found = {}
                for parts in map(int, options.parts.split(",")):
                    variant = Variant(connection, parts)
                    found[f"{parts} parts" if parts else "plain"] = measured(variant, options.memories)
                    connection.execute(f"DROP TABLE {variant.m}, {variant.p}")  # type: ignore[call-overload]
        finally:
            embedded.stop(Path(folder))
    names = (
        *("filled", "20 memories stored, p50 / p95", "postings of 5 words", "20 newest facts", "100 memories by id"),
        *("a namespace deleted", "VACUUM after that", "on disk"),
    )
    rows: list[list[object]] = [[name, *values] for name, *values in zip(names, *found.values(), strict=True)]
    print(table([f"{options.memories:,} memories", *found], rows))


if __name__ == "__main__":
    main()
