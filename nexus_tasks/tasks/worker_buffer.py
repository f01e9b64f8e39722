"""What a worker does for its own machine, beat or not: store the session buffer, keep contexts ready for the hook."""

from __future__ import annotations

import logging
import time

from celery import Celery

from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.worker.background import BackgroundStep
from nexus_tasks.services import buffer_flush, context_cache

log = logging.getLogger(__name__)

EVERY, LOOK_EVERY = 300.0, 30.0  # seconds between storing the buffer, and between looks at what is new


class BufferStep(BackgroundStep):
    """Looks in every worker: Postgres may be slow, and the worker must not wait for it."""

    called = "nexus-buffer"

    def work(self, _app: Celery) -> None:
        """Look again and again, whatever has to wait."""
        stored_at = float("-inf")
        while True:
            try:
                if time.monotonic() - stored_at >= EVERY:
                    stored_at = time.monotonic()
                    store()
                context_cache.refresh()
            except NexusError as error:
                log.warning("The session buffer, or a context for the hook, has to wait: %s", error)
            if self.over(LOOK_EVERY):
                return


def store() -> dict[str, int]:
    """Store this machine's buffer; returns how many messages were stored and how many jobs were asked for.

    Raises:
        StorageUnavailable: Postgres does not answer; what was not stored stays.
        BufferError: the folder cannot be read or written.
    """
    if not buffer_flush.session_buffer().pending():
        return {"stored": 0, "enqueued": 0}
    report = buffer_flush.store_buffer()
    for damage in report.damages:
        log.warning("The session buffer had a %s entry, see %s: %s", damage.kind, damage.kept_as, damage.reason)
    if report.stored:
        log.info("Stored %d messages from the session buffer.", report.stored)
    return {"stored": report.stored, "enqueued": report.enqueued}
