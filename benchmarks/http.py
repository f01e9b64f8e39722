"""What HTTP adds to a search, and how many reads per second `nexus serve` answers.

    python -m benchmarks.http [--quick] [--processes N]

The first table has the times of the same searches by the client in this process and over HTTP, in turn, one at a time.
The second table has reads per second over 8 connections that stay open, and the CPU time that a read takes in the
server, in Postgres, and in this process, which sends and receives with plain sockets. All share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.machine import calibration, table
from benchmarks.tenants import MINE, WORDS, _fill
from nexus_tasks import Nexus, embedded
from tests.databases import make_template
from tests.integration.inline import work
from tests.sandbox import Sandbox, eventually, sandbox

TOKEN = "the-token-of-this-benchmark"
CONNECTIONS = 8


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer messages, and shorter")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers) as here:
                _fill(MINE, 500 if given.quick else 5_000)
                work("embed_memories")
                here.sql("ANALYZE")
                with serving(here, given.processes) as (port, server):
                    rows = latencies(port, 60 if given.quick else 400)
                    print(table(["search", "client", "over HTTP", "more"], rows))
                    heads = ["reads, 8 connections", "reads/s", "p95", "server", "Postgres", "this process"]
                    seconds = 2.0 if given.quick else 8.0
                    print(table(heads, asyncio.run(throughput(here, port, server, seconds))))
        finally:
            embedded.stop(Path(folder))


@contextmanager
def serving(here: Sandbox, processes: int) -> Iterator[tuple[int, psutil.Process]]:
    """The command, as an operator starts it."""
    log = here.folder / "serve.log"
    environment = here.environment | {"NEXUS_HTTP_TOKEN": TOKEN, "NEXUS_HTTP_RATE": "0"}
    command = [sys.executable, "-m", "nexus_tasks.cli.main", "serve", "0", "--processes", str(processes)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=here.folder, stderr=output)
    try:
        found = eventually(lambda: re.search(r"127\.0\.0\.1:(\d+)", log.read_text()), within=60)
        assert found
        port = int(found[1])
        eventually(lambda: asyncio.run(answers(port)), within=60)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


async def answers(port: int) -> bool:
    """Whether the server answers."""
    try:
        connection = await Connection.open(port)
    except OSError:
        return False
    status, _ = await connection.ask(request("GET", "/readyz"))
    connection.close()
    return status == 200


def request(method: str, path: str, body: object = None) -> bytes:
    """A request as bytes."""
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Connection:
    """A connection that stays open. An HTTP client of Python would take more time than the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, sent: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self.writer.write(sent)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert length, head
        return int(head[9:12]), await self.reader.readexactly(int(length[1]))

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


def latencies(port: int, searches: int) -> list[list[object]]:
    """The searches, one at a time, by both ways in turn."""
    rng, nexus = random.Random(1), Nexus(namespaces=[MINE])
    questions = [" ".join(rng.sample(WORDS, 3)) for _ in range(searches)]

    async def ask() -> tuple[list[float], list[float]]:
        connection = await Connection.open(port)
        direct, over = list[float](), list[float]()
        for number, question in enumerate([*questions[:20], *questions]):
            sent = request("POST", "/v1/search", {"namespace": MINE, "query": question})
            start = time.perf_counter()
            nexus.search(MINE, question)
            middle = time.perf_counter()
            status, _ = await connection.ask(sent)
            end = time.perf_counter()
            assert status == 200
            if number >= 20:  # the first calls plan their statements
                direct.append(middle - start)
                over.append(end - middle)
        connection.close()
        return direct, over

    direct, over = asyncio.run(ask())
    rows: list[list[object]] = []
    for name, figure in (("median", statistics.median), ("p95", p95)):
        before, after = figure(direct) * 1000, figure(over) * 1000
        rows.append([name, f"{before:.1f} ms", f"{after:.1f} ms", f"{after - before:.1f} ms"])
    return rows


def p95(times: list[float]) -> float:
    """The time within which 95 of 100 are done."""
    return sorted(times)[int(len(times) * 0.95)]


async def throughput(here: Sandbox, port: int, server: psutil.Process, seconds: float) -> list[list[object]]:
    """Reads per second of three kinds of reads."""
    newest = Nexus().memories(MINE, limit=1)[0].id
    rng = random.Random(2)
    questions = [" ".join(rng.sample(WORDS, 3)) for _ in range(1_000)]
    kinds = {
        "GET /v1/memories/ID": [request("GET", f"/v1/memories/{newest}?namespace={MINE}")],
        "GET /v1/sessions": [request("GET", f"/v1/sessions?namespace={MINE}")],
        "POST /v1/search": [request("POST", "/v1/search", {"namespace": MINE, "query": one}) for one in questions],
    }
    return [[name, *await _load(here, port, server, sent, seconds)] for name, sent in kinds.items()]


async def _load(here: Sandbox, port: int, server: psutil.Process, sent: list[bytes], seconds: float) -> list[object]:
    times = list[float]()
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        connection = await Connection.open(port)
        while time.perf_counter() < until:
            start = time.perf_counter()
            status, _ = await connection.ask(sent[number % len(sent)])
            assert status == 200, status
            times.append(time.perf_counter() - start)
            number += CONNECTIONS
        connection.close()

    before = _cpu(here, server)
    await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    used = [
        f"{(after - was) / len(times) * 1000:.2f} ms" for after, was in zip(_cpu(here, server), before, strict=True)
    ]
    return [f"{len(times) / seconds:.0f}", f"{p95(times) * 1000:.0f} ms", *used]


def _cpu(here: Sandbox, server: psutil.Process) -> list[float]:
    """Seconds of CPU time of the server, of this database's backends, and of this process."""
    backends = [pid for (pid,) in here.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")]
    groups = ([server, *server.children(recursive=True)], map(psutil.Process, backends), [psutil.Process(os.getpid())])
    return [sum(sum(one.cpu_times()[:2]) for one in group) for group in groups]


if __name__ == "__main__":
    main()
