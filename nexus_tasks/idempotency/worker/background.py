"""The base of worker steps that have a background thread in the worker's main process."""

from __future__ import annotations

import threading
from contextlib import suppress

from celery import Celery, bootsteps

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.engine import engine_of

PATIENCE = 3.0  # seconds for which a worker that shuts down waits for the thread


class BackgroundStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A worker step that runs :meth:`work` in a thread, from the worker's start until its end.

    :meth:`work` does not run on the worker's event loop, because the loop could then handle no messages meanwhile.
    """

    # The thread starts after the pool has forked, and after `IdentityStep` has compared the database with the claims.
    requires = ("celery.worker.components:Pool", "nexus_tasks.idempotency.worker.identity:IdentityStep")
    thread_name = "nexus-background"

    def __init__(self, _worker: object, **_options: object) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._app: Celery | None = None

    def work(self, app: Celery) -> None:
        """Work until :meth:`ends_within` returns ``True``."""
        raise NotImplementedError

    def ends_within(self, seconds: float) -> bool:
        """Wait for ``seconds``, or until the worker is to end. Returns whether the worker is to end."""
        if self._app is not None:
            with suppress(NexusError):  # Postgres may come up later than the worker
                engine_of(self._app).vitals.turned(self.thread_name)
        return self._stopped.wait(seconds)

    def start(self, worker: object) -> None:
        """Celery calls this when the worker starts."""
        self._app = worker.app  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self.work, args=(self._app,), name=self.thread_name, daemon=True)
        self._thread.start()

    def stop(self, _worker: object) -> None:
        """Celery calls this when the worker shuts down. The process may go on, as under Celery's pytest plugin."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    terminate = stop  # a cold shutdown and Celery's pytest plugin call only this
