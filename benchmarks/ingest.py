"""How fast messages are stored: calls with 1,000 messages, and single messages from one and from eight clients.

    python -m benchmarks.ingest [--seconds 3] [--profile]

No worker runs. Every client is a process with its own connections. The peer in the same run is a bare client that
stores the same bytes with ``INSERT … COMMIT`` into a table with one text column, one statement and one commit a call.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import event

from benchmarks.machine import calibration, table
from nexus_tasks import Message, Nexus, embedded
from nexus_tasks.deployment import default_deployment
from tests.databases import make_template
from tests.sandbox import Sandbox, sandbox

MANY = 1_000  # messages of a call with many
BOUNDS = {(MANY, 1): 5_000, (1, 1): 500, (1, 8): 800}  # (messages a call, clients): messages/s


def said(number: int, count: int) -> list[Message]:
    """Messages of about 40 characters, each with an id."""
    return [
        Message(
            id=f"{number}-{n}", author="ann", content=f"In week {number} I read {n + 3} pages of a book on the {n}th"
        )
        for n in range(count)
    ]


def per_second(call: Callable[[int], object], messages: int, seconds: float) -> float:
    """Messages per second over at least ``seconds``, after a call that is not counted."""
    call(0)
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        calls += 1
        call(calls)
    return calls * messages / (time.perf_counter() - start)


def ours(messages: int, seconds: float) -> float:
    """One client: ``Nexus.ingest`` into one session for single messages, into a new session for each larger call."""
    nexus, own = Nexus(), uuid.uuid4().hex
    return per_second(
        lambda n: nexus.ingest("bench", own if messages == 1 else f"{own}-{n}", said(n, messages)), messages, seconds
    )


def bare(messages: int, seconds: float) -> float:
    """One client of the peer."""
    with psycopg.connect(default_deployment().endpoints.database_url.replace("+psycopg", "")) as connection:

        def call(n: int) -> None:
            contents = [one.content for one in said(n, messages)]
            connection.execute("INSERT INTO bare SELECT unnest(%s::text[])", [contents])
            connection.commit()

        return per_second(call, messages, seconds)


def together(client: Callable[[int, float], float], messages: int, clients: int, seconds: float) -> float:
    """Messages per second of all clients, which are processes."""
    if clients == 1:
        return client(messages, seconds)
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(client, [messages] * clients, [seconds] * clients))


@dataclass
class Trips:
    """What one call does: statements of Postgres (BEGIN and COMMIT are two more), and commands of Redis."""

    statements: int
    commands: float


def trips(here: Sandbox, messages: int, calls: int = 20) -> Trips:
    """Counts over some calls, without the first."""
    nexus, counted, own = Nexus(), [0], uuid.uuid4().hex
    nexus.ingest("bench", own, said(0, messages))

    def count(*_: Any) -> None:
        counted[0] += 1

    engine, redis = here.deployment.database.engine, here.deployment.claims.redis
    event.listen(engine, "before_cursor_execute", count)
    before = redis.info("stats")["total_commands_processed"]
    for n in range(1, calls + 1):
        nexus.ingest("bench", own, said(n, messages))
    after = redis.info("stats")["total_commands_processed"]
    event.remove(engine, "before_cursor_execute", count)
    return Trips(counted[0] // calls, round((after - before - 1) / calls, 1))


def profiled(messages: int, seconds: float) -> None:
    """Print where the time of one client goes."""
    profile = cProfile.Profile()
    profile.enable()
    ours(messages, seconds)
    profile.disable()
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(45)
    pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(70)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each line is measured")
    parser.add_argument("--profile", action="store_true", help="print where the time of one client goes instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers) as here:
                here.sql("CREATE TABLE bare (content text)")
                if options.profile:
                    for messages in (1, MANY):
                        profiled(messages, options.seconds)
                    return
                rows: list[list[object]] = []
                for (messages, clients), bound in BOUNDS.items():
                    found = together(ours, messages, clients, options.seconds)
                    peer = together(bare, messages, clients, options.seconds)
                    did = trips(here, messages)
                    rows.append(
                        [
                            *(messages, clients, f"{found:,.0f}", f"{bound:,}", f"{peer:,.0f}", f"{found / peer:.2f}"),
                            *(did.statements, did.commands),
                        ]
                    )
        finally:
            embedded.stop(Path(folder))
    headings = ["messages a call", "clients", "messages/s", "bound", "bare INSERT … COMMIT", "ratio"]
    print(table([*headings, "statements a call", "Redis commands a call"], rows))


if __name__ == "__main__":
    main()
