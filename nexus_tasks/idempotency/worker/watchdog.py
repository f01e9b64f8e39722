"""The watchdog: repairs a worker that takes no message for 30 s, although messages wait and its pool has room.

First the watchdog makes the consumer connect anew: it raises a connection error on the worker's event loop, and Celery
then connects and subscribes again. If the event loop is stuck, or if the worker still takes no message within the next
30 s, the worker ends with exit code 1, for its supervisor to start another worker (``ending.py`` ends it in time).

Celery and kombu have had several faults after which a consumer takes no more messages (celery issues 8091, 10205 and
10302). ``celery_patches`` has patches for the known faults. The watchdog is for faults that are not known yet.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from celery import Celery
from celery.concurrency.solo import TaskPool as SoloPool
from celery.platforms import EX_FAILURE
from celery.worker import state

from nexus_tasks.idempotency.engine import engine_of
from nexus_tasks.idempotency.worker.background import BackgroundStep

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0  # seconds
PATIENCE = 30.0  # seconds without a taken message, although messages wait and slots (places in the pool) are free
TURN_WITHIN = 10.0  # seconds within which a healthy event loop makes a call


class ConsumerStuck(ConnectionError):
    """The error on the event loop that makes the consumer connect anew."""


class Watchdog:
    """Watches one worker. ``worker`` is Celery's ``WorkController``."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._progress = -1
        self._since = time.monotonic()  # when a message was last taken or begun, or no message could be begun
        self._mended = False

    def look(self) -> bool:
        """Look once, and mend the consumer if it is stuck. Returns whether the worker must end."""
        self._ask_loop()
        # A worker that moves malformed messages or jobs of unknown kinds aside begins nothing, and is not stuck.
        progress, now = state.all_total_count[0] + engine_of(self._worker.app).messages_taken, time.monotonic()
        if progress != self._progress or not self._could_begin():
            self._progress, self._since, self._mended = progress, now, False
            return False
        if now - self._since < PATIENCE:
            return False
        if self._mended:
            log.critical("The worker takes no message with its new connection either.")
            return True
        self._mended, self._since = True, now
        return not self._mend()

    def _ask_loop(self) -> None:
        """Ask the consumer's event loop to turn, so that ``/livez`` sees a stuck loop (``vitals.py``)."""
        vitals, consumer = engine_of(self._worker.app).vitals, getattr(self._worker, "consumer", None)
        hub = getattr(consumer, "hub", None)
        # Without a connection the consumer waits for the broker. In a solo pool a run holds up the loop.
        if consumer is None or hub is None or consumer.connection is None or self._runs_in_loop():
            vitals.consumer_turned()
        else:
            vitals.ask_consumer()
            hub.call_soon(vitals.consumer_turned)

    def _runs_in_loop(self) -> bool:
        return isinstance(getattr(self._worker, "pool", None), SoloPool) and bool(state.active_requests)

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
        """Make the consumer connect anew. Returns ``False`` when there is no event loop, or when it is stuck."""
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
        """Look every 5 s until the worker ends. When the watchdog finds no remedy, ask Celery to end the worker."""
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
