"""Other processes that hold leases, for tests that end them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDS = """
import sys, time
from pathlib import Path
from nexus_tasks.idempotency.worker.holder import LeaseHolder
holder = LeaseHolder(Path(sys.argv[1]))
print(holder.id, flush=True)
{then}
time.sleep(600)
"""


@contextmanager
def another(folder: Path, then: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process that holds leases, and its id."""
    command = [sys.executable, "-c", HOLDS.format(then=then), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()
