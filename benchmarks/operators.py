"""What an operator's commands cost behind a backlog: a million claims in 10,000 namespaces, each wanted by Postgres.

    python -m benchmarks.operators [--quick]

The table has the shortest time of five calls of the client's method, and the processor time and the highest memory of
the command as a process of its own. Most of the processor time is the start: compare it with that of `nexus namespaces
show`, which reads one row. The bounds are 1 s for a call and 200 MB for a command.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from benchmarks.machine import calibration, table
from nexus_tasks import Nexus, derive_memory, embedded
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.tasks.derive_memory import DeriveMemory
from tests.databases import make_template
from tests.sandbox import Sandbox, sandbox

RUNS = 5
ROWS = (
    "INSERT INTO namespaces (name) SELECT 'tenant-' || n FROM generate_series(1, {namespaces}) n",
    "INSERT INTO sessions (namespace_id, session_key) SELECT id, 'chat' FROM namespaces",
    "INSERT INTO memories (namespace_id, session_id, level, seq, content, tokens, role, author, occurred_at)"
    " SELECT s.namespace_id, s.id, 'raw', n, 'A message.', 3, 'user', 'ann', now()"
    " FROM sessions s, generate_series(1, {each}) n",
    "INSERT INTO derivations (namespace_id, session_id, memory_id, observer)"
    " SELECT namespace_id, session_id, id, 'assistant' FROM memories",
    "INSERT INTO job_runs (job_id, namespace_id, kind, scope, status, reasons, details)"
    " SELECT 'run-' || m.id, m.namespace_id, 'derive_memory', '{{}}', 'completed', '{{}}', '{{}}' FROM memories m",
    "ANALYZE",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    share = 10 if parser.parse_args().quick else 1
    namespaces, each = 10_000 // share, 100
    with tempfile.TemporaryDirectory(prefix="nexus-bench-") as folder:
        servers = embedded.ensure(Path(folder))
        try:
            make_template(servers)
            print(calibration(servers))
            with sandbox(servers) as here:
                job_id = _fill(here, namespaces, each)
                print(f"{namespaces * each:,} claims in {namespaces:,} namespaces")
                print(table(["command", "call", "processor time", "memory"], _measured(here, namespaces, job_id)))
                here.redis().flushdb(asynchronous=True)
        finally:
            embedded.stop(Path(folder))


def _fill(here: Sandbox, namespaces: int, each: int) -> str:
    """Make the rows and their claims; half of the claims wait for a budget. Returns the id of a job in the middle."""
    for statement in ROWS:
        here.sql(statement.format(namespaces=namespaces, each=each))
    claims = default_deployment().claims
    model = derive_memory.request_for(DeriveMemory(namespace="tenant-0", memory_id=10**9, observer="assistant"))
    found = here.sql("SELECT n.name, m.id FROM memories m JOIN namespaces n ON n.id = m.namespace_id ORDER BY m.id")
    middle, rng = "", random.Random(1)
    for start in range(0, len(found), 500):
        requests = [
            replace(
                model,
                id=str(UUID(bytes=rng.randbytes(16), version=4)),
                namespace=name,
                scope=model.scope.replace(str(10**9), str(memory_id)).replace("tenant-0", name),
                args=model.args.replace(str(10**9), str(memory_id)).replace("tenant-0", name),
                delay=86_400.0 if memory_id % 2 else 0.0,
                wait_reason="budget",
            )
            for name, memory_id in found[start : start + 500]
        ]
        claims.claim(requests)
        if start <= len(found) // 2:
            middle = requests[0].id
    return middle


def _measured(here: Sandbox, namespaces: int, job_id: str) -> list[list[object]]:
    last, nexus = f"tenant-{namespaces}", Nexus()
    index = ClaimIndex(default_deployment().claims)
    calls: dict[str, Callable[[], object]] = {
        f"namespaces show {last}": lambda: nexus.namespace(last),
        "status": nexus.status,
        f"status --namespace {last}": lambda: nexus.status(last),
        "jobs list": nexus.jobs,
        f"jobs list --namespace {last}": lambda: nexus.jobs(namespace=last),
        f"jobs list --namespace {last} --status pending": lambda: nexus.jobs(namespace=last, status="pending"),
        "jobs list --kind digest_session": lambda: nexus.jobs(kind="digest_session"),
        "jobs list --status waiting --offset 40000": lambda: nexus.jobs(status="waiting", offset=40_000),
        f"jobs show {job_id}": lambda: nexus.job(job_id),
        f"jobs show {job_id[:13]}": lambda: index.ids_that_begin_with(job_id[:13], 2),
        "jobs finished": nexus.finished_jobs,
    }
    rows: list[list[object]] = []
    for command, call in calls.items():
        seconds = min(_seconds(call) for _ in range(RUNS))
        cpu, memory = _run(here, command.split())
        rows.append([f"nexus {command}", f"{seconds * 1000:.0f} ms", f"{cpu:.2f} s", f"{memory:.0f} MB"])
    return rows


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# The kernel counts what a process held before it became another program: this one is large, and its child is not.
_ALONE = """
import os, resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
os.write(1, ended.stdout)
sys.stderr.write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}")
"""


def _run(here: Sandbox, command: list[str]) -> tuple[float, float]:
    """Processor time (seconds) and highest memory (MB) of a command."""
    words = [sys.executable, "-c", _ALONE, sys.executable, "-m", "nexus_tasks.cli.entry", *command, "--json"]
    ended = subprocess.run(words, env=here.environment, capture_output=True, text=True, check=True)
    json.loads(ended.stdout)
    cpu, memory = ended.stderr.split()[-2:]
    return float(cpu), float(memory)


if __name__ == "__main__":
    main()
