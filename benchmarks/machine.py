"""The speed of this machine, printed beside absolute figures; and the CPU time and memory of a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import redis
from sqlalchemy import create_engine, text

from nexus_tasks.embedded import ServerAddresses


def calibration(servers: ServerAddresses) -> str:
    """Redis round trips, Postgres commits and rounds of a Python loop, per second."""
    client = redis.Redis.from_url(servers.redis_url)
    engine = create_engine(servers.database_url)
    with engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE calibration (n int)"))
        connection.commit()

        def commit() -> None:
            connection.execute(text("INSERT INTO calibration VALUES (1)"))
            connection.commit()

        commits = _per_second(commit)
    engine.dispose()
    loops = _per_second(lambda: sum(range(1_000))) * 1_000
    return (
        f"calibration: {_per_second(client.ping):,.0f} Redis round trips/s, {commits:,.0f} Postgres commits/s, "
        f"{loops / 1e6:.0f} million additions/s"
    )


def _per_second(action: Callable[[], object], seconds: float = 0.5) -> float:
    start, times = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        action()
        times += 1
    return times / (time.perf_counter() - start)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its reaped children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / 100


def wait_until_idle(pid: int) -> None:
    """Wait until a process that has started uses less than a tenth of a core for a second, but at most 30 s."""
    for _ in range(30):
        used = cpu_seconds(pid)
        time.sleep(1)  # the time over which the use is measured
        if cpu_seconds(pid) - used < 0.1:
            return


def peak_mib(pid: int) -> float:
    """The peak of a process's resident memory, in MiB."""
    return _status_mib(pid, "VmHWM")


def resident_mib(pid: int) -> float:
    """The resident memory of a process now, in MiB."""
    return _status_mib(pid, "VmRSS")


def _status_mib(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def table(headings: list[str], rows: list[list[object]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
