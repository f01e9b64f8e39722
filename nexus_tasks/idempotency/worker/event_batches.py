"""Send a worker's task events together, five times a second.

Flower and other monitors read these events. Celery sends the events of each tick of the worker's loop as one message.
A tick rarely has more than one event, so short jobs cost a message for each of their three events: a tenth of the CPU
of a worker that derived 40 sessions. Events are sent earlier when 24 of them wait, as in Celery itself.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps
from celery.worker.consumer.events import Events
from kombu.common import ignore_errors
from vine import promise

EVERY = 0.2  # seconds


class EventBatchesStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Makes the consumer send its events together, and sends the last ones when the worker stops."""

    requires = (Events,)

    def start(self, parent: Any) -> None:
        """Called by Celery for each connection, when its dispatcher of events is there."""
        if parent.hub is not None:
            parent.event_dispatcher.on_send_buffered = _Batches(parent).note

    def shutdown(self, parent: Any) -> None:
        """Send what waits before the dispatcher is closed."""
        if parent.event_dispatcher:
            ignore_errors(parent, parent.event_dispatcher.flush)


class _Batches:
    """The time of the last message with events, and whether the next one is planned."""

    def __init__(self, consumer: Any) -> None:
        self._dispatcher, self._hub = consumer.event_dispatcher, consumer.hub
        self._sent, self._planned = 0.0, False

    def note(self) -> None:
        """An event waits. Any thread calls this, but timers may be set by the loop's thread alone."""
        if not self._planned:
            self._planned = True
            self._hub.call_soon(promise(self._plan))

    def _plan(self) -> None:
        self._hub.call_later(max(self._sent + EVERY - time.monotonic(), 0.0), self._send)

    def _send(self) -> None:
        self._planned = False  # before the events are taken: a later event plans a message of its own
        self._sent = time.monotonic()
        self._dispatcher.flush()
