"""How long an append to the session buffer takes, by fsync policy, beside a raw write and fsync on the same disk."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.machine import table
from nexus_tasks.buffer import SessionBuffer

PAYLOAD = {"role": "user", "content": "We deploy on Tuesdays, after the tests have passed. " * 6}


def timed(action: Callable[[], object], times: int, pause: float) -> list[float]:
    """Milliseconds that each call took, sorted. Between two calls are ``pause`` seconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        took.append((time.perf_counter() - began) * 1_000)
        if pause:
            time.sleep(pause)
    return sorted(took)


def row(name: str, took: list[float]) -> list[object]:
    """A row of the table: percentiles in milliseconds."""
    at = [took[min(int(len(took) * share), len(took) - 1)] for share in (0.5, 0.95, 0.99)]
    return [name, f"{len(took):,}", *(f"{value:.3f}" for value in at), f"{took[-1]:.2f}"]


def raw(folder: Path, *, sync: bool) -> Callable[[], object]:
    """A function that appends one line to a file and, with ``sync``, calls fsync."""
    fd = os.open(folder / f"raw-{sync}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    line = b"x" * 420 + b"\n"

    def write() -> None:
        os.write(fd, line)
        if sync:
            os.fdatasync(fd)

    return write


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5_000, help="unpaced appends per policy")
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        rows.append(row("calibration: write", timed(raw(folder, sync=False), options.times, 0)))
        rows.append(row("calibration: write + fdatasync", timed(raw(folder, sync=True), options.times // 5, 0)))
        for policy in ("off", "interval", "always"):
            for pace, times, pause in (("unpaced", options.times, 0.0), ("every 10 ms", 500, 0.01)):
                buffer = SessionBuffer(folder / f"{policy}-{pause}", fsync=policy)  # type: ignore[arg-type]
                calls = times // 5 if policy == "always" and not pause else times
                took = timed(partial(buffer.append, "acme", "chat", PAYLOAD), calls, pause)
                rows.append(row(f"append, {policy}, {pace}", took))
                segments = buffer.flush_all()
                assert sum(len(one.entries) for one in segments) == calls
                buffer.acknowledge(segments)
                buffer.close()
    print(table(["", "calls", "p50 ms", "p95 ms", "p99 ms", "max ms"], rows))
    print("\nBound: append p99 ≤ 1 ms with `interval`.")


if __name__ == "__main__":
    main()
