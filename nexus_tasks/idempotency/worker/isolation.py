"""Isolation: a job that has crashed twice runs in its own process. If the job crashes again, only this process dies.

When a worker is killed, each of its running jobs counts a crash, although most of these jobs did not cause the crash.
When an isolated job crashes, the worker's other jobs go on.

A new process would take seconds to load the code that a job needs. So the job's process is forked from the worker's
fork server (:mod:`~nexus_tasks.idempotency.worker.fork_server`), which has loaded this code. Usually a worker with a
pool of threads forks its fork server when it starts. Any other worker, for example with a solo pool, starts a fork
server for the first job that needs one. Jobs in a prefork pool need no isolation, because each child of the pool runs
one job at a time.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from billiard.process import current_process
from celery.signals import worker_process_init

from nexus_tasks import tracing
from nexus_tasks.idempotency.worker.fork_server import serve
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

# How many isolated runs one worker process has at a time. They are few, because a lack of memory may have made the jobs
# crash. They are more than one, because each run waits for a model. Chosen by hand, not measured.
AT_ONCE = 4


class ProcessDied(Exception):
    """The process of an isolated run has ended without an outcome."""


# Performs a run in a child: (kind, claim key, token, canvas delivery, context of the run's span) -> outcome
TakeUp = Callable[[str, str, str, str, str], JobOutcome]

_imported_in = os.getpid()
_in_pool_child = False


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _note_pool_child(**_kwargs: object) -> None:
    """Note whether this process is a child of a prefork pool.

    Celery sends this signal in a solo pool too. A solo pool runs its jobs in the worker's own process.
    """
    global _in_pool_child
    forked = os.getpid() != _imported_in
    _in_pool_child = forked or current_process().name != "MainProcess"


def in_pool_child() -> bool:
    """Whether this process is a child of a prefork pool. Such a child runs one job, so its crash hits no other job."""
    return _in_pool_child


@dataclass(frozen=True)
class ForkServerLine:
    """The socket to a fork server. The fork server ends when the socket is closed, also by the worker's death."""

    line: socket.socket
    wait: Callable[[], int]  # waits for the fork server's end; returns its exit code

    def ask(self, run: bytes) -> Any:
        """Have a child perform a run. Returns the file with its answers, or ``None`` when no child could be forked."""
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
        """Close the socket, and wait for the fork server's end. Returns its exit code."""
        self.line.close()
        return self.wait()


class Isolation:
    """One deployment's fork server in a worker process.

    Args:
        command: returns the arguments that start a fork server, without the interpreter. Called when a fork server is
            needed and the worker has forked none.
    """

    def __init__(self, command: Callable[[], list[str]]) -> None:
        self._command = command
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._asking = threading.Lock()
        self._line: ForkServerLine | None = None

    def perform(self, run: Run) -> JobOutcome:
        """Perform the run in its own process, under its own token, and wait for its end.

        Raises:
            OSError: no process could be started.
            ProcessDied: the process has ended without an outcome.
            ConfigurationError: no other process could load the Celery application.
        """
        primary = run.primary
        run.own_process, run.began = True, math.inf  # a run that waits for a place has not begun
        with self._places:
            if run.lost.is_set():
                return JobOutcome(status="superseded", job_id=primary.job_id)
            # When the run is over its limit, the child gives up the claim. If the child cannot, this process gives up
            # the claim one lease later. After another lease the fork server kills the child.
            run.began = time.monotonic()
            run.limit += run.lease
            named = [primary.kind, primary.key, primary.token, run.delivery, json.dumps(tracing.carrier())]
            with self._ask([run.limit + run.lease, *named]) as answers:
                said = [json.loads(answer) for answer in answers]  # outcome (none if the child died), exit code
        if not said or isinstance(said[0], int):
            raise ProcessDied(said[0] if said else None)
        outcome = said[0]
        return JobOutcome(**outcome | {"reasons": tuple(outcome["reasons"])})

    def fork(self, take_up: TakeUp) -> None:
        """Fork the fork server from this process, which has loaded everything and has no other thread."""
        ours, theirs = socket.socketpair()
        if pid := os.fork():
            theirs.close()
            self._line = ForkServerLine(ours, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            return
        code = 1
        try:
            ours.close()
            serve(theirs, take_up, idle=None)
            code = 0
        finally:
            os._exit(code)

    def close(self) -> None:
        """End the fork server, if there is one."""
        if self._line is not None:
            self._line.end()
            self._line = None

    def _ask(self, run: list[Any]) -> Any:
        ended = 0
        with self._asking:
            for _ in range(2):  # the first try fails when the fork server was idle for a minute and has ended
                self._line = self._line or self._start()
                if answers := self._line.ask(json.dumps(run).encode()):
                    return answers
                ended, self._line = self._line.end(), None
        raise OSError(f"the fork server ended with {ended} before it took a job")

    def _start(self) -> ForkServerLine:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, *self._command()]
            return ForkServerLine(ours, subprocess.Popen(command, stdin=theirs.fileno()).wait)
