"""A process of its own for a job that has crashed twice: whoever it kills then is itself.

A worker that was killed among hundreds of jobs leaves hundreds of suspects, nearly all innocent, and a process takes
seconds to load all it needs. So a worker with threads keeps one that has loaded it, and forks for every such job: the
:mod:`~nexus_tasks.idempotency.worker.fork_server`. A child of a prefork pool is a process of its own already.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import worker_process_init

from nexus_tasks.types import JobOutcome

if TYPE_CHECKING:
    from nexus_tasks.idempotency.task import JobTask
    from nexus_tasks.idempotency.worker.run import Run

log = logging.getLogger(__name__)

# Of a worker process. Few, because what made the jobs crash may have been that memory was short; more than one, because
# each waits for a model, and so do those that come after it.
AT_ONCE = 4

_places = threading.BoundedSemaphore(AT_ONCE)
_asking = threading.Lock()
_alone = False


@dataclass(frozen=True)
class _Nursery:
    """The process that forks, and the line to it; it ends when the line is closed, however its worker went."""

    line: socket.socket
    wait: Callable[[], int]  # for its end; returns its exit code

    def ask(self, run: bytes) -> Any:
        """Let a child of its do a run: its answers, once there is such a child; ``None`` when there will be none."""
        ours, theirs = os.pipe()
        answers = os.fdopen(ours)
        try:
            socket.send_fds(self.line, [run], [theirs])
        except OSError:
            answers.close()
            return None
        finally:
            os.close(theirs)
        if answers.readline():
            return answers
        answers.close()
        return None

    def end(self) -> int:
        """Close the line to it; returns its exit code."""
        self.line.close()
        return self.wait()


_nursery: _Nursery | None = None


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin_in_child(**_kwargs: object) -> None:
    global _alone
    _alone = True


def is_alone() -> bool:
    """Whether this is a child of a prefork pool: it runs one job at a time, and dies alone."""
    return _alone


def perform_isolated(task: JobTask, run: Run) -> JobOutcome:
    """Perform the run in a process of its own, under the token that it has, and wait for it.

    Raises:
        OSError: no process could be started.
    """
    lead = run.lead
    with _places:
        if run.lost.is_set():
            return JobOutcome(status="superseded", job_id=lead.job_id)
        with _ask(task, [task.kind, lead.key, lead.token, run.delivery]) as answers:
            said = [json.loads(answer) for answer in answers]  # its outcome unless it died, and its exit code
    if not said or isinstance(said[0], int):
        # Its lease runs out, and the sweep counts the crash.
        ended = said[0] if said else None
        log.error("Job %s (%s) ended its process with %s.", lead.job_id, lead.kind, ended)
        return JobOutcome(status="superseded", job_id=lead.job_id, details={"process": ended})
    outcome = said[0]
    return JobOutcome(**outcome | {"reasons": tuple(outcome["reasons"])})


def _ask(task: JobTask, run: list[str]) -> Any:
    global _nursery
    ended = 0
    with _asking:
        for _ in range(2):  # the first one may have ended meanwhile, having been idle
            _nursery = _nursery or _start(
                [str(module) for module in task.app.conf.include]
            )  # `celery worker --include`
            if answers := _nursery.ask(json.dumps(run).encode()):
                return answers
            ended, _nursery = _nursery.end(), None
    raise OSError(f"it ended with {ended} before it took a job")


def _start(modules: list[str]) -> _Nursery:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "nexus_tasks.idempotency.worker.fork_server", *modules]
        return _Nursery(ours, subprocess.Popen(command, stdin=theirs.fileno()).wait)


class ForkServerStep(bootsteps.Step):  # type: ignore[misc]
    """Forks the nursery from a worker that has loaded everything, and has no thread or connection yet: that is cheap.

    Only for a pool of threads: others are processes already, or change what a child would inherit. And only while there
    is no other thread, whose locks a child would inherit locked. Else, and after the death of the first one, it is
    started when it is needed.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        if issubclass(parent.pool_cls, ThreadPool) and threading.active_count() == 1:
            _fork()


def _fork() -> None:
    global _nursery
    from nexus_tasks.idempotency.worker import fork_server

    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        _nursery = _Nursery(ours, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return
    code = 1
    try:
        ours.close()
        fork_server.serve(theirs, None)
        code = 0
    finally:
        os._exit(code)
