"""How long commands take as cold processes, beside the bare interpreter. Bytecode is written and read, as installed.

python -m benchmarks.start
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import table

TIMES = 10
BOUND = 0.5  # seconds
COMMANDS = (
    ("--help",),
    ("status",),
    ("jobs", "list"),
    ("search", "deploys", "--namespace", "acme"),
    ("context", "--query", "deploys", "--namespace", "acme"),
    ("remember", "Deploys are on Tuesdays.", "--namespace", "acme"),
)


def seconds(command: list[str], environment: dict[str, str]) -> list[float]:
    """Seconds of so many starts, in order of length. The first, which writes bytecode, is not counted."""
    took = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        subprocess.run(command, env=environment, capture_output=True, check=True)
        took.append(time.perf_counter() - began)
    return sorted(took[1:])


def main() -> None:
    """Print the table."""
    nexus = str(Path(sys.executable).with_name("nexus"))
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as home:
        environment = {**os.environ, "NEXUS_HOME": home, "NEXUS_MODEL": "offline"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(
            [nexus, "remember", "Deploys are on Mondays.", "--namespace", "acme"], env=environment, check=True
        )
        try:
            rows: list[list[object]] = []
            for name, command in [
                ("the bare interpreter (-I -c pass)", [sys.executable, "-I", "-c", "pass"]),
                *((f"nexus {' '.join(words)}", [nexus, *words]) for words in COMMANDS),
            ]:
                took = seconds(command, environment)
                rows.append([name, f"{statistics.median(took):.2f}", f"{took[-1]:.2f}"])
        finally:
            subprocess.run([nexus, "down"], env=environment, check=True)
    print(table(["process", f"median of {TIMES}, s", "slowest, s"], rows))
    print(f"\nBound: {BOUND} s.")


if __name__ == "__main__":
    main()
