"""The watchdog: a worker that sees messages, has free slots and begins nothing for 30 s does not stay like that.

First it mends its consumer: the event loop loses its connection, so that Celery connects and subscribes anew. When the
event loop itself is stuck, or when 30 s later still nothing has begun, the worker ends with exit code 1, for its
supervisor to start another one (``ending.py`` bounds how long that takes).

Celery and kombu have had several faults after which a consumer waits and never consumes (celery issues 8091, 10205 and
10302). Those that could be found are patched here (``celery_patches``); the watchdog is for the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import Celery
from celery.platforms import EX_FAILURE
from celery.worker import state

from nexus_tasks.idempotency.engine import engine_of
from nexus_tasks.idempotency.worker.background import BackgroundStep

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0  # seconds
PATIENCE = 30.0  # seconds with messages, free slots and nothing begun
TURN_WITHIN = 10.0  # seconds for a turn of the event loop


class ConsumerStuck(ConnectionError):
    """The consumer is given a new connection."""


class Watchdog:
    """Watches one worker. ``worker`` is Celery's ``WorkController``."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._begun = -1
        self._since = time.monotonic()  # when something was last begun, or there was nothing to begin
        self._mended = False

    def look(self) -> bool:
        """Look once, and mend the consumer if it is stuck. Returns whether the worker must end."""
        begun, now = state.all_total_count[0], time.monotonic()
        if begun != self._begun or not self._could_begin():
            self._begun, self._since, self._mended = begun, now, False
            return False
        if now - self._since < PATIENCE:
            return False
        if self._mended:
            log.critical("Still nothing is begun with a new connection.")
            return True
        self._mended, self._since = True, now
        return not self._mend()

    def _could_begin(self) -> bool:
        worker = self._worker
        if state.should_stop not in (None, False) or state.should_terminate not in (None, False):
            return False
        slots = getattr(worker, "max_concurrency", None) or worker.pool.num_processes
        return len(state.reserved_requests) < slots and engine_of(worker.app).breaker.closed() and self._sees_messages()

    def _sees_messages(self) -> bool:
        """Whether a queue of this worker holds a message; ``False`` while the broker does not answer."""
        consumer = getattr(self._worker, "consumer", None)
        if consumer is None or not consumer.task_consumer:
            return False
        app = self._worker.app
        with app.connection_for_read() as connection:
            try:
                with connection.channel() as channel:
                    return any(
                        queue(channel).queue_declare().message_count for queue in list(consumer.task_consumer.queues)
                    )
            except (*connection.connection_errors, *connection.channel_errors):
                return False

    def _mend(self) -> bool:
        """Have the consumer connect anew; ``False`` when there is no event loop, or when it does not turn."""
        hub, turned = self._worker.consumer.hub, threading.Event()
        log.warning("Messages wait, slots are free, and nothing has begun for %d s: connecting anew.", PATIENCE)
        if hub is None:
            return False

        def lose_connection() -> None:
            turned.set()
            raise ConsumerStuck("The consumer took no message although some waited.")

        hub.call_soon(lose_connection)
        if turned.wait(TURN_WITHIN):
            return True
        log.critical("The worker's event loop has not turned for %d s.", TURN_WITHIN)
        return False


class WatchdogStep(BackgroundStep):
    """Runs the watchdog in every worker."""

    thread_name = "nexus-watchdog"

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._worker = worker

    def work(self, app: Celery) -> None:  # noqa: ARG002 - the worker has it
        """Look every 5 s until the worker ends, or must end."""
        watchdog = Watchdog(self._worker)
        while not self.ends_within(LOOK_EVERY):
            try:
                stuck = watchdog.look()
            except Exception:
                log.exception("The watchdog could not look, it tries again.")
                continue
            if stuck:
                log.critical("This worker takes no messages any more and ends.")
                state.should_stop = EX_FAILURE
                return
