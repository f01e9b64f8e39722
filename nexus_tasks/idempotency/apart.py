"""A process of its own for a job that has crashed twice: whoever it kills then is itself.

Each worker process keeps one, made when it is first needed, which runs such jobs one after the other: a worker that was
killed among hundreds of jobs leaves hundreds of suspects, nearly all innocent, and a process takes a second to start.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nexus_tasks.types import JobOutcome

if TYPE_CHECKING:
    from nexus_tasks.idempotency.run import Run
    from nexus_tasks.idempotency.task import JobTask

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0  # after which the process ends: it holds as much memory as a worker

# One job at a time in each worker process: what made the jobs crash may have been that memory was short.
_turn = threading.Lock()
_spare: tuple[int, subprocess.Popen[str]] | None = None  # whose it is (a fork has its own), and the process


def perform_apart(task: JobTask, run: Run) -> JobOutcome:
    """Perform the run in the process kept for it, under the token that it has, and wait for it.

    Raises:
        OSError: no process could be started.
    """
    lead = run.lead
    modules = [str(module) for module in task.app.conf.include]  # `celery worker --include`
    with _turn:
        if run.lost.is_set():
            return JobOutcome(status="superseded", job_id=lead.job_id)
        ended, said = _tell(json.dumps([task.kind, lead.key, lead.token, run.delivery]), modules)
    if not said:
        # Its lease runs out, and the sweep counts the crash.
        log.error("Job %s (%s) ended its process with %d.", lead.job_id, lead.kind, ended)
        return JobOutcome(status="superseded", job_id=lead.job_id, details={"process": ended})
    outcome = json.loads(said)
    return JobOutcome(**outcome | {"reasons": tuple(outcome["reasons"])})


def _tell(run: str, modules: Sequence[str]) -> tuple[int, str]:
    """Let the process do a run: its exit code and nothing when that ended it, else 0 and the outcome."""
    global _spare
    for _ in range(2):  # the first one may have ended meanwhile, having been idle
        if _spare is None or _spare[0] != os.getpid():
            _spare = os.getpid(), _start(modules)
        process = _spare[1]
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(run + "\n")
            process.stdin.flush()
            taken = process.stdout.readline()
        except BrokenPipeError:
            taken = ""
        said = process.stdout.readline() if taken else ""
        if said:
            return 0, said
        _spare = None
        process.stdout.close()
        ended = process.wait()
        if taken:
            return ended, ""
    raise OSError(f"it ended with {ended} before it took a job")


def _start(modules: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def main(*modules: str) -> None:
    """What the process does: take up one run after the other where its worker left it, and say how each ended."""
    from nexus_tasks.celery import app

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a job prints is not taken for an answer
    logging.basicConfig(level=logging.INFO, format=app.conf.worker_log_format)
    app.loader.import_default_modules()
    for module in modules:
        importlib.import_module(module)
    # Nothing more is read when the worker is gone, however it went.
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        print("taken", file=answers, flush=True)
        outcome = _take_up(*json.loads(line))
        print(json.dumps(asdict(outcome), default=str), file=answers, flush=True)


def _take_up(kind: str, key: str, token: str, delivery: str) -> JobOutcome:
    from nexus_tasks.celery import app
    from nexus_tasks.idempotency.binding import binding
    from nexus_tasks.idempotency.task import task_of
    from nexus_tasks.idempotency.work import alive, perform, run_of

    task, claim = task_of(app, kind), binding().claims.get(key)
    if claim is None or claim.token != token:
        return JobOutcome(status="superseded")
    run = run_of(task, claim, task.request_for(task.load(claim.args), job_id=claim.job_id), delivery=delivery)
    with alive(run):
        return perform(task, run)


if __name__ == "__main__":
    main(*sys.argv[1:])
