"""The active runs: the runs that this process has begun and whose handlers have not returned.

A handler is the function of a job kind. A run is over its limit when it has lasted longer than its kind's
``run_limit``. The process then gives up the run's claims (the records of its jobs in Redis), so the run can commit
nothing. The run's thread cannot be ended. The thread is held (it can do no other work) until the handler returns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nexus_tasks.idempotency.worker.run import Run


class ActiveRuns:
    """The runs of one process. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._lock = threading.Lock()

    @contextmanager
    def keeping(self, run: Run) -> Iterator[None]:
        """Count ``run`` as active inside the block."""
        with self._lock:
            self._runs[id(run)] = run
        try:
            yield
        finally:
            with self._lock:
                self._runs.pop(id(run), None)

    def every(self) -> list[Run]:
        """The runs now."""
        with self._lock:
            return list(self._runs.values())

    def over_limit(self) -> list[Run]:
        """The runs that are over their limit now, the oldest first."""
        return sorted((run for run in self.every() if run.over_limit), key=lambda run: run.began)

    def end_over_limit(self) -> None:
        """Give up the claims of runs that are over their limit. The heartbeat calls this before each renewal."""
        for run in self.over_limit():
            run.heartbeat.let_go(run.claims)  # on every call, because the run may have taken a claim meanwhile
            if not run.lost.is_set():
                run.given_up = True  # set before `lost`: when a handler stops at `lost`, `perform` reads `given_up`
                run.lost.set()
                # In a thread, because the run may end with a dead letter. A slow Postgres must not keep the heartbeat
                # from renewing other leases.
                threading.Thread(target=run.give_up, args=(run,), name="nexus-over-limit", daemon=True).start()
