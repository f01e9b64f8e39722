"""Ends a worker soon after its shutdown grace, even when a job, the broker or another server hangs.

1. A signal, a remote ``shutdown``, an unrecoverable error, or too many held threads (see below) ask the worker to end.
   Celery stops consuming and waits for the runs.
2. The worker waits for the shutdown grace (``NEXUS_SHUTDOWN_GRACE``), but not in a cold shutdown. Then it gives back
   the runs that go on, so that other workers take their jobs. This counts no failure against the jobs.
3. The process ends, also when a run, the broker or Celery's own shutdown hangs. A warm shutdown first waits for tasks
   that are not this package's jobs, as Celery does.

When code blocks the interpreter, this thread cannot run either. Then ``interpreter_guard.py`` ends the worker.

A run that is over its limit has lost its claim (the job's record in Redis). But the run's thread cannot be ended: it is
held. The worker reports held threads, which ``nexus status`` shows. When half of all threads are held, the worker ends
with exit code 1, so that its supervisor restarts it. In a prefork pool no thread is held: the worker kills the child.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from billiard import active_children
from celery import bootsteps
from celery.apps.worker import Worker
from celery.concurrency.prefork import TaskPool as ProcessPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.platforms import EX_FAILURE
from celery.worker import state

from nexus_tasks import tracing
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.kind import OURS, JobKind
from nexus_tasks.idempotency.worker.circuit_breaker import HOLD_SECONDS
from nexus_tasks.idempotency.worker.executor import release
from nexus_tasks.idempotency.worker.interpreter_guard import MARGIN, InterpreterGuard
from nexus_tasks.idempotency.worker.run import Run

log = logging.getLogger(__name__)

LOOK_EVERY, POLL_EVERY = 0.5, 0.1  # seconds, while the worker works and while it ends
REPORT_EVERY = 5.0  # seconds between two reports of held threads
PATIENCE = 5.0  # seconds for giving runs back, and for children to end


class EndStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the thread that ends the worker in time."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, _worker: object, **_options: object) -> None:
        """Celery makes the step before the worker starts."""

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts."""
        if isinstance(worker.pool, ThreadPool):
            # In a cold shutdown Celery would try to cancel the runs. A thread cannot be cancelled, so Celery would only
            # log a traceback.
            worker.consumer.cancel_active_requests = lambda: None
        threading.Thread(target=_Ending(worker).watch, name="nexus-end", daemon=True).start()

    def stop(self, _worker: object) -> None:
        """Do nothing. The thread must go on, because Celery now waits for runs that may never end."""


class _Ending:
    """Watches one worker until its process ends."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._begun = WeakKeyDictionary[Any, float]()  # for each request in a child: when it was first seen
        self._reported_at = float("-inf")
        self._engine: JobEngine | None = None
        self._guard: InterpreterGuard | None = None

    def watch(self) -> None:
        """Handle runs that are over their limit until the worker is asked to end. Then end the worker in time."""
        owns_process = isinstance(self.worker, Worker)  # not in tests, where the worker is part of another process
        guarded = owns_process and not isinstance(self.worker.pool, ProcessPool)
        while not self._asked():
            try:
                if guarded and self._guard is None:
                    self._guard = InterpreterGuard(self.engine.limits.shutdown_grace)
                    self._guard.start()
                self._kill_hung_children()
                self._report_held_threads()
            except NexusError as error:
                log.warning("The worker's held threads could not be reported: %s", error)
            except Exception:  # the thread must go on, because otherwise a hung run keeps the worker from ending
                log.exception("The check for runs over their limit failed, it is tried again.")
            time.sleep(LOOK_EVERY)
        if owns_process:
            try:
                self._end()
            finally:
                self._end_by(float("inf"))

    # --- while the worker works ---------------------------------------------------------------------------------------
    def _kill_hung_children(self) -> None:
        """Kill the children of a prefork pool whose runs are far over their limit.

        By then the run has lost its claim. Usually the child has given up the claim itself. When a job's code blocks
        the interpreter, the child could not give up the claim, but the claim's lease has ended. Celery replaces a
        killed child.
        """
        for request in list(state.active_requests):
            kind, pid = getattr(request.task, "kind", None), request.worker_pid
            if not isinstance(kind, JobKind) or pid in (None, os.getpid()):
                continue
            begun = self._begun.setdefault(request, time.monotonic())
            late = HOLD_SECONDS + 2 * self.engine.limits.lease  # before its run began, it may have waited for storage
            if time.monotonic() - begun > kind.run_limit + late:
                log.error("Job %s (%s) does not return: its process %d is killed.", request.id, kind.name, pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _report_held_threads(self) -> None:
        held, threads = self._held(), self.worker.pool.num_processes
        due = time.monotonic() - self._reported_at >= REPORT_EVERY
        if due and (held or self._reported_at > 0):
            self.engine.claims.report_held_threads(self.worker.hostname, held=len(held), threads=threads)
            self._reported_at = time.monotonic() if held else float("-inf")
        if held and 2 * len(held) >= threads:  # an idle pool of `--autoscale` may have no process
            log.error(
                "%d of %d threads are held by runs over their limit: the worker takes no more work and ends.",
                len(held),
                threads,
            )
            state.should_stop = EX_FAILURE

    def _held(self) -> Sequence[Run]:
        """The runs over their limit that hold a thread for good.

        Runs in processes of their own are left out, because the fork server kills these processes.
        """
        return [run for run in self.engine.runs.over_limit() if not run.own_process]

    @property
    def engine(self) -> JobEngine:
        """The engine of the worker's application."""
        if self._engine is None:
            self._engine = engine_of(self.worker.app)
        return self._engine

    # --- when the worker ends -----------------------------------------------------------------------------------------
    def _asked(self) -> bool:
        """Whether the worker is asked to end, or is ending already."""
        return _exit_code(state.should_stop, state.should_terminate) is not None or self.worker.blueprint.state in (
            bootsteps.CLOSE,
            bootsteps.TERMINATE,
        )

    def _end(self) -> None:
        deadline = time.monotonic() + self.engine.limits.shutdown_grace
        self._end_by(deadline + MARGIN)
        while not (time.monotonic() >= deadline or _cold() or self._only_held_threads()):
            if self._complete(after=POLL_EVERY):
                return
        self._give_back()
        if self._others_run():
            self._end_by(float("inf"))
        deadline = time.monotonic() + PATIENCE
        while self._others_run() or (active_children() and time.monotonic() < deadline):
            if self._complete(after=POLL_EVERY):
                return
        for child in active_children():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        if self.worker.pidlock:
            self.worker.pidlock.release()
        tracing.flush()
        code = _exit_code(state.should_terminate, state.should_stop, self.worker.exitcode)
        os._exit(code or 0)  # `sys.exit` would wait for threads that do not end

    def _end_by(self, deadline: float) -> None:
        if self._guard is not None:
            self._guard.end_by(deadline)

    def _complete(self, *, after: float) -> bool:
        """Wait for ``after`` seconds. Returns whether Celery's warm shutdown is complete and ends the process."""
        time.sleep(after)
        return bool(self.worker.blueprint.shutdown_complete.is_set()) and not _cold()

    def _only_held_threads(self) -> bool:
        """Whether all runs that are left hold a thread for good, so that waiting for them is useless."""
        runs = self.engine.runs.every()
        return bool(runs) and len(runs) == len(self._held())

    def _give_back(self) -> None:
        """Give back the runs of this process's threads, and have the children of a prefork pool give back theirs."""
        if not _cold():  # in a cold shutdown Celery has told the children already
            for request in list(state.active_requests):
                if _is_ours(request) and request.worker_pid not in (None, os.getpid()):
                    with suppress(ProcessLookupError):
                        os.kill(request.worker_pid, signal.SIGTERM)
        runs = [run for run in self.engine.runs.every() if not run.lost.is_set()]
        if runs:
            log.warning("The worker ends: %d runs are cut off and given back. No job counts a failure.", len(runs))
        thread = threading.Thread(target=release, args=(self.engine, runs), daemon=True)
        thread.start()
        thread.join(PATIENCE)

    @staticmethod
    def _others_run() -> bool:
        """Whether a task that is no job runs. A warm shutdown waits for such a task, because it would be lost."""
        return not _cold() and not all(_is_ours(request) for request in list(state.active_requests))


def _is_ours(request: Any) -> bool:
    """Whether a request is for a job, or for a tick of this package."""
    return isinstance(getattr(request.task, "kind", None), JobKind) or request.task.name.startswith(OURS)


def _cold() -> bool:
    """Whether the shutdown is cold. A cold shutdown does not wait for runs."""
    return _exit_code(state.should_terminate) is not None


def _exit_code(*codes: Any) -> int | None:
    """The first exit code that is set. Celery leaves a code at ``None`` or ``False`` until the worker is to end."""
    return next((int(code) for code in codes if code is not None and code is not False), None)
