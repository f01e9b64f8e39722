"""A thread beside a worker's jobs, in its main process: it begins with the worker, and ends with it."""

from __future__ import annotations

import threading

from celery import Celery, bootsteps

PATIENCE = 3.0  # seconds that a worker's end waits for what the thread is about


class BackgroundStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the worker whose :meth:`work` runs in a thread: on its event loop, what blocks stalls consumption."""

    requires = ("celery.worker.components:Pool",)  # threads start after the pool has forked
    called = "nexus-beside"  # the thread's name

    def __init__(self, _worker: object, **_options: object) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def work(self, app: Celery) -> None:
        """What is done until :meth:`over` says that the worker ends."""
        raise NotImplementedError

    def over(self, seconds: float) -> bool:
        """Wait so long; whether the worker ends meanwhile."""
        return self._stopped.wait(seconds)

    def start(self, worker: object) -> None:
        """Called when the worker starts."""
        app = worker.app  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self.work, args=(app,), name=self.called, daemon=True)
        self._thread.start()

    def stop(self, _worker: object) -> None:
        """Called when the worker shuts down: its process may go on, as somebody else's."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    terminate = stop  # a cold shutdown calls this one only, and Celery's pytest plugin ends its worker by one
