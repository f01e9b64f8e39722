"""The circuit breaker: while storage (Postgres) does not answer or takes no writes, this process begins no job.

Without the breaker each job would fail, wait and fail again, with two log lines every time. A job that finds storage
away opens the breaker. While the breaker is open, one of the waiting threads tests storage once a second, and closes
the breaker when the test succeeds. If the breaker opens again within a minute, the test comes every 2 s, the next time
every 4 s and so on, up to 30 s. The breaker opens again so soon when a disk is nearly full, so that the test can write
and jobs cannot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from celery.worker import state

log = logging.getLogger(__name__)

ASK_EVERY, ASK_AT_LEAST_EVERY = 1.0, 30.0  # seconds
STEADY = 60.0  # seconds; after so long without an outage, the next outage begins with one test a second again
# A message is held back for at most this long, because a worker that shuts down waits for the messages it has taken.
# After this time the worker ignores the message. The job's claim (its record in Redis) stays pending, and the sweep (a
# loop of every worker) publishes another message once storage answers.
HOLD_SECONDS = 20.0


class CircuitBreaker:
    """Open while storage is away. ``answers`` tests storage and returns whether storage takes writes now."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._open = threading.Event()
        self._asking = threading.Lock()
        self._asked_at = self._closed_at = float("-inf")
        self._ask_every = ASK_EVERY

    def trip(self, reason: object = "") -> None:
        """Open the breaker, because a job has found that storage does not answer. ``reason`` is logged."""
        if self._open.is_set():
            return
        again = time.monotonic() - self._closed_at < STEADY
        self._ask_every = min(2 * self._ask_every, ASK_AT_LEAST_EVERY) if again else ASK_EVERY
        self._open.set()
        log.warning("Storage does not answer: no job is begun until it does. %s", reason)

    def closed(self) -> bool:
        """Whether storage answers, as far as this process knows. In an outage one caller at a time tests storage."""
        if not self._open.is_set():
            return True
        if self._asking.acquire(blocking=False):
            try:
                if time.monotonic() - self._asked_at >= self._ask_every and self._open.is_set():
                    answers = self._answers()
                    self._asked_at = time.monotonic()
                    if answers:
                        self._closed_at = self._asked_at
                        self._open.clear()
                        log.warning("Storage answers again.")
            finally:
                self._asking.release()
        return not self._open.is_set()

    def wait_until_closed(self) -> bool:
        """Wait for the end of an outage; ``False`` when the outage lasts longer than 20 s, or the worker shuts down."""
        until = time.monotonic() + HOLD_SECONDS
        while not self.closed():
            if time.monotonic() >= until or _shuts_down():
                return False
            time.sleep(ASK_EVERY / 2)  # an outage ends without an event: each round asks the storage again
        return True


def _shuts_down() -> bool:
    """Whether this worker was told to shut down. The children of a prefork pool are not told and wait the full 20 s."""
    return state.should_stop is not None and state.should_stop is not False  # an exit code, which may be 0
