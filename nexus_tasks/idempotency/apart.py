"""A process of its own for a job that has crashed twice: whoever it kills then is itself."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

from nexus_tasks.types import JobOutcome

if TYPE_CHECKING:
    from nexus_tasks.idempotency.run import Run
    from nexus_tasks.idempotency.task import JobTask

log = logging.getLogger(__name__)

# One at a time in each worker process: what made the jobs crash may have been that memory was short.
_turn = threading.Lock()


def perform_apart(task: JobTask, run: Run) -> JobOutcome:
    """Perform the run in a new process, under the token that it has, and wait for it.

    Raises:
        OSError: no process could be started.
    """
    lead = run.lead
    modules = [str(module) for module in task.app.conf.include]  # `celery worker --include`
    with _turn:
        if run.lost.is_set():
            return JobOutcome(status="superseded", job_id=lead.job_id)
        ended = subprocess.run(
            [sys.executable, "-m", __name__, task.kind, lead.key, lead.token, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if ended.returncode:
        # Its lease runs out, and the sweep counts the crash.
        log.error("Job %s (%s) ended its process with %d.", lead.job_id, lead.kind, ended.returncode)
        return JobOutcome(status="superseded", job_id=lead.job_id, details={"process": ended.returncode})
    said = json.loads(ended.stdout.splitlines()[-1])
    return JobOutcome(**said | {"reasons": tuple(said["reasons"])})


def main(kind: str, key: str, token: str, *modules: str) -> None:
    """What the new process does: take up the run where its worker left it, and print the outcome."""
    from nexus_tasks.celery import app
    from nexus_tasks.idempotency.binding import binding
    from nexus_tasks.idempotency.task import task_of
    from nexus_tasks.idempotency.work import alive, perform, run_of

    logging.basicConfig(level=logging.INFO, format=app.conf.worker_log_format)
    app.loader.import_default_modules()
    for module in modules:
        importlib.import_module(module)
    task, claim = task_of(app, kind), binding().claims.get(key)
    outcome = JobOutcome(status="superseded")
    if claim is not None and claim.token == token:
        run = run_of(task, claim, task.request_for(task.load(claim.args), job_id=claim.job_id))
        with alive(run):
            outcome = perform(task, run)
    print(json.dumps(asdict(outcome), default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
