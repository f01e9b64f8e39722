"""What runs when a worker starts, in this order.

1. ``worker_init``: :func:`preload` loads the model's library and the embedder, so that no job waits for them and the
   children of a prefork pool share them.
2. :class:`PatchStep`: a worker outlives a lost connection to Redis, and hears of revoked messages.
3. :class:`RedisClientStep`: one Redis client per channel of the broker.
4. :class:`ForkServerStep`: forks the fork server for jobs that have crashed twice (pool of threads only).
5. Celery's pool and consumer start.
6. :class:`SweepStep`: a thread that returns stuck claims every 2 s and reconciles with Postgres every 10 s.
7. :class:`BufferStep`: a thread that stores this machine's session buffer every 5 minutes and keeps contexts ready.

The first run of a job starts the heartbeat's thread, in the process that runs it.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import worker_init

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.celery_patches.closed_channel import ClosedChannelStep
from nexus_tasks.idempotency.celery_patches.redis_client_per_channel import RedisClientStep
from nexus_tasks.idempotency.engine import engine_of, has_jobs
from nexus_tasks.idempotency.worker.background import BackgroundStep
from nexus_tasks.idempotency.worker.executor import take_up
from nexus_tasks.idempotency.worker.reserved import listen_for_revokes
from nexus_tasks.idempotency.worker.sweeper import SweepStep
from nexus_tasks.services import buffer_flush, context_cache
from nexus_tasks.tasks.registry import tick

log = logging.getLogger(__name__)

GARBAGE = 10_000  # objects made before the collector looks through the youngest
STORE_EVERY, REFRESH_EVERY = 300.0, 30.0  # seconds between storing the buffer, and between refreshes of the contexts


@worker_init.connect  # type: ignore[untyped-decorator]
def preload(sender: Any, **_kwargs: object) -> None:
    """Choose the model, load its library and the embedder. ``sender`` is Celery's worker."""
    if not has_jobs(sender.app):
        return
    try:
        deployment: Deployment = engine_of(sender.app).deployment
        deployment.preload()
        deployment.embedder.embed(["warm"])
    except NexusError as error:
        log.error("No job can run yet: %s", error)  # each job reports it again; the worker may outlast the cause
        return
    # The objects loaded by now stay: collections need not visit them (0.2 s each), nor children copy them to do so.
    gc.collect()
    gc.freeze()
    # A run makes thousands of objects and keeps few. With Celery's threshold of 700 the collector took a seventh of a
    # derivation's CPU.
    gc.set_threshold(GARBAGE)


class PatchStep(ClosedChannelStep):
    """Lets the worker outlive a lost connection to Redis, and drops the claims of revoked messages."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        listen_for_revokes()


class ForkServerStep(bootsteps.Step):  # type: ignore[misc]
    """Forks the fork server from a worker that has loaded everything, and has no thread or connection yet.

    Only for a pool of threads: the children of other pools are processes already. And only while this process has one
    thread: a child would inherit the locks of others as they are. Otherwise, and when the first fork server has died,
    one is started when it is needed.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        if issubclass(parent.pool_cls, ThreadPool) and threading.active_count() == 1:
            deployment: Deployment = engine_of(parent.app).deployment
            deployment.isolation.fork(partial(take_up, parent.app))


class BufferStep(BackgroundStep):
    """Stores this machine's session buffer and keeps contexts ready for the hook, in a thread of every worker."""

    thread_name = "nexus-buffer"

    def work(self, app: Celery) -> None:
        """Store and refresh until the worker ends; whatever cannot be stored now waits for the next time."""
        stored_at = float("-inf")
        deployment: Deployment | None = None
        while True:
            try:
                deployment = deployment or engine_of(app).deployment
                if time.monotonic() - stored_at >= STORE_EVERY:
                    stored_at = time.monotonic()
                    recover_buffers(deployment)
                context_cache.refresh(deployment)
            except NexusError as error:
                log.warning("The session buffer, or a context for the hook, has to wait: %s", error)
            if self.ends_within(REFRESH_EVERY):
                return


@tick
def recover_buffers(deployment: Deployment) -> dict[str, int]:
    """Store the session buffer of the machine that this worker runs on; returns the messages stored and jobs asked for.

    Not once per slot: every machine has a folder of its own, and storing a folder twice stores it once.

    Raises:
        StorageUnavailable: Postgres does not answer; what was not stored stays.
        BufferError: the folder cannot be read or written.
    """
    if not deployment.buffer.pending():
        return {"stored": 0, "enqueued": 0}
    report = buffer_flush.store_buffer(deployment)
    for damage in report.damages:
        log.warning("The session buffer had a %s entry, see %s: %s", damage.kind, damage.kept_as, damage.reason)
    if report.stored:
        log.info("Stored %d messages from the session buffer.", report.stored)
    return {"stored": report.stored, "enqueued": report.enqueued}


__all__ = ["BufferStep", "ForkServerStep", "PatchStep", "RedisClientStep", "SweepStep", "preload", "recover_buffers"]
