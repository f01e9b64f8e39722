"""The steps that run when a Celery worker starts, in this order.

1. ``worker_init``: :func:`preload` loads the model's library and the embedder, so that no job waits for their loading.
   The children of a prefork pool share the loaded objects.
2. :class:`PatchStep`: patches Celery and kombu, so that a lost connection to Redis or a malformed message does not end
   the worker. It also listens for revoked messages.
3. :class:`RedisClientStep`: keeps one Redis client per channel of the broker.
4. :class:`ConsumerTimeoutStep`: patches Celery, so that RabbitMQ's consumer timeout does not end the worker.
5. :class:`DatabasePoolStep`: fits the pool of Postgres connections to the number of threads.
6. :class:`GarbageStep`: collects all garbage once a minute.
7. :class:`ForkServerStep`: forks the fork server for jobs that have crashed twice (pool of threads only).
8. Celery starts its pool and its consumer. A step of the consumer, :class:`EventBatchesStep`, sends task events
   together, five times a second.
9. :class:`EndStep`: starts a thread that limits how long runs and the worker's shutdown may last. In a worker whose
   runs are threads it also starts the interpreter guard, which ends a worker in which code blocks the interpreter.
10. :class:`IdentityStep`: ends the worker if the claims (the records of jobs in Redis) belong to another database.
11. :class:`SweepStep`: starts a thread for the sweep. Every 2 s the sweep queues the jobs of dead workers again, sends
    lost messages again, and publishes jobs that have become due.
12. :class:`ReconcileStep`: starts a thread that, every 10 s, enqueues the jobs that rows in Postgres ask for and that
    have no claim in Redis.
13. :class:`WatchdogStep`: starts a thread that repairs the consumer when it takes no messages although messages wait.
14. :class:`BufferStep`: starts a thread that moves the messages of this machine's session buffer (files that keep
    messages while Postgres is away) to Postgres every 5 minutes, and updates the context files for coding agents' hooks
    every 30 s.
15. :class:`MonitoringStep`: serves metrics and health pages over HTTP, if ``NEXUS_METRICS_PORT`` is set.

One more thread, the heartbeat, renews the leases of running jobs. A child of a prefork pool starts it when the child
comes up. The worker itself and a child of the fork server start it with their first job.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from functools import partial
from typing import Any

from celery import Celery, bootsteps, current_app
from celery.concurrency.prefork import TaskPool as ProcessPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    beat_init,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
)

from nexus_tasks import config, tracing
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import ConfigurationError, NexusError
from nexus_tasks.idempotency.celery_patches.closed_channel import ClosedChannelStep
from nexus_tasks.idempotency.celery_patches.consumer_timeout import ConsumerTimeoutStep
from nexus_tasks.idempotency.celery_patches.errbacks import send_each_errback
from nexus_tasks.idempotency.celery_patches.malformed_messages import move_malformed_aside
from nexus_tasks.idempotency.celery_patches.redis_transport import RedisClientStep
from nexus_tasks.idempotency.celery_patches.thread_pool import answer_honestly
from nexus_tasks.idempotency.celery_patches.unknown_kinds import keep_jobs_of_unknown_kinds
from nexus_tasks.idempotency.engine import engine_of, has_jobs
from nexus_tasks.idempotency.request import URGENT
from nexus_tasks.idempotency.worker import pool_children
from nexus_tasks.idempotency.worker.background import BackgroundStep
from nexus_tasks.idempotency.worker.ending import EndStep
from nexus_tasks.idempotency.worker.event_batches import EventBatchesStep
from nexus_tasks.idempotency.worker.executor import take_up
from nexus_tasks.idempotency.worker.identity import IdentityStep
from nexus_tasks.idempotency.worker.malloc_arenas import limit_arenas
from nexus_tasks.idempotency.worker.reconciler import ReconcileStep
from nexus_tasks.idempotency.worker.reserved import listen_for_revokes
from nexus_tasks.idempotency.worker.sweeper import SweepStep
from nexus_tasks.idempotency.worker.watchdog import WatchdogStep
from nexus_tasks.mistyped_settings import mistyped_settings
from nexus_tasks.monitoring import endpoint, sentry
from nexus_tasks.monitoring.logs import leave_out_prompts, write_json
from nexus_tasks.services import buffer_flush, context_cache, idle_sessions
from nexus_tasks.settings import load_settings
from nexus_tasks.tasks.registry import tick

log = logging.getLogger(__name__)

GARBAGE = 10_000  # number of new objects after which the garbage collector checks the youngest generation
COLLECT_EVERY = 60.0  # seconds between two checks of all generations
# Seconds between two stores of the session buffer, and seconds between two updates of the context files.
STORE_EVERY, REFRESH_EVERY = 300.0, 30.0


@worker_init.connect  # type: ignore[untyped-decorator]
def preload(sender: Any, **_kwargs: object) -> None:
    """Choose the model, and load the model's library and the embedder. ``sender`` is Celery's worker.

    Variables that look like mistyped settings are logged. Threads share two heaps.
    """
    if not has_jobs(sender.app):
        return
    limit_arenas()
    sentry.start()
    for one in mistyped_settings():
        log.warning("%s", one)
    try:
        deployment: Deployment = engine_of(sender.app).deployment
        deployment.preload()
        deployment.embedder.embed(["warm"])
    except NexusError as error:
        # The worker goes on, because the cause may pass. Until then each job reports the error.
        log.error("No job can run yet: %s", error)
        return
    # The loaded objects stay until the worker ends. The garbage collector skips frozen objects, which saves 0.2 s per
    # collection. Forked children share the memory of frozen objects.
    gc.collect()
    gc.freeze()
    # A run makes thousands of objects and keeps few of them. With Python's own threshold (700 in Python 3.11; Celery
    # does not change it), the collector took a seventh of a derivation's CPU time.
    gc.set_threshold(GARBAGE)


@worker_process_init.connect  # type: ignore[untyped-decorator]
def start_heartbeat(**_kwargs: object) -> None:
    """Start the heartbeat of a prefork pool's child before its first job, so that `/livez` sees a child that is stuck.

    Celery sends this signal in a solo pool too, whose heartbeat starts with the first job.
    """
    if pool_children.place_in_pool() is not None and has_jobs(current_app):
        engine_of(current_app).heartbeat.start()


class PatchStep(ClosedChannelStep):
    """Patches Celery and kombu, so that a lost connection or a malformed message does not end the worker.

    The step also listens for revoked messages. The claim of a revoked message is dropped. A worker that reads the queue
    ``capture`` reads ``urgent`` too, also when its ``--queues`` names only ``capture``.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        _refuse_green_threads(parent.pool_cls)
        _read_urgent_jobs(parent.app)
        listen_for_revokes()
        move_malformed_aside()
        keep_jobs_of_unknown_kinds()
        send_each_errback()
        answer_honestly()


def _read_urgent_jobs(app: Celery) -> None:
    """Read the queue of urgent jobs beside ``capture``, whose jobs become urgent when a caller waits for them."""
    queues = app.amqp.queues
    if "capture" in queues.consume_from:
        queues.select_add(config.queue_of(URGENT, app.conf.task_default_queue_type))


def _refuse_green_threads(pool: type) -> None:
    """Raise an error for a pool whose tasks share one thread.

    In that thread, a task that computes would stop the heartbeat and the sweep.

    Raises:
        ConfigurationError: the pool is gevent's or eventlet's.
    """
    name = pool.__module__.rpartition(".")[2]
    if name in ("gevent", "eventlet"):
        raise ConfigurationError(
            f"Jobs do not run in a pool of {name}: a job that computes would stop the heartbeat, and lose its lease.",
            remedy="Start the worker with `--pool threads`, `--pool processes` or `--pool solo`.",
        )


def _refuse_growing_threads(worker: Any) -> None:
    """Raise an error for ``--autoscale`` with a pool that cannot grow. The first busy moment would end the worker.

    Raises:
        ConfigurationError: the pool is one of threads, or solo.
    """
    if worker.autoscale and not issubclass(worker.pool_cls, ProcessPool):
        raise ConfigurationError(
            "--autoscale needs a pool of processes: the size of a pool of threads is fixed.",
            remedy="Start the worker with `--concurrency N`, or with `--pool processes --autoscale MAX,MIN`.",
        )


class DatabasePoolStep(bootsteps.Step):  # type: ignore[misc]
    """Fits the pool of Postgres connections to the worker's number of threads, if the worker has a pool of threads."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        _refuse_growing_threads(parent)
        if issubclass(parent.pool_cls, ThreadPool):
            engine_of(parent.app).deployment.threads = parent.max_concurrency or parent.concurrency


class GarbageStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Collects the garbage of all generations once a minute, which takes about 10 ms.

    A connection to the broker that has ended is garbage of large objects in circles. There are few of them, so that
    Python itself would check all generations only once in half an hour.
    """

    requires = ("celery.worker.components:Timer",)

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts."""
        worker.timer.call_repeatedly(COLLECT_EVERY, gc.collect)


class ForkServerStep(bootsteps.Step):  # type: ignore[misc]
    """Forks the fork server, a process that later forks a child for each job that has crashed twice.

    The step runs after the worker has loaded all code, and before the worker starts its threads and connects to the
    servers. It forks only on two conditions:

    - The pool is a pool of threads. A prefork pool needs no fork server, because each of its children runs one job at a
      time.
    - This process has only one thread, because a child would inherit the locks that other threads hold.

    In a solo pool, when this process has several threads, and after the fork server has died, the first job that needs
    a fork server starts one.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        if issubclass(parent.pool_cls, ThreadPool) and threading.active_count() == 1:
            deployment: Deployment = engine_of(parent.app).deployment
            deployment.isolation.fork(partial(take_up, parent.app))


class BufferStep(BackgroundStep):
    """Stores this machine's session buffer, and keeps up what coding agents need, in a thread of every worker.

    It updates the context files of the agents, and ends their sessions that nobody goes on with.
    """

    thread_name = "nexus-buffer"

    def work(self, app: Celery) -> None:
        """Store the session buffer and update the context files until the worker ends.

        After an error, storing is tried again 5 minutes later, and updating 30 s later.
        """
        stored_at = float("-inf")
        deployment: Deployment | None = None
        while True:
            try:
                deployment = deployment or engine_of(app).deployment
                if time.monotonic() - stored_at >= STORE_EVERY:
                    stored_at = time.monotonic()
                    recover_buffers(deployment)
                    idle_sessions.end(deployment)
                context_cache.refresh(deployment)
            except NexusError as error:
                log.warning("The session buffer or a context for the hook could not be written yet: %s", error)
            except Exception:  # such as a file of another user
                log.exception("The session buffer or a context for the hook could not be written yet.")
            if self.ends_within(REFRESH_EVERY):
                return


class MonitoringStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves the metrics and health pages of a worker."""

    requires = ("celery.worker.components:Pool", "nexus_tasks.idempotency.worker.identity:IdentityStep")

    def __init__(self, _worker: object, **_options: object) -> None:
        self._endpoint: endpoint.Endpoint | None = None

    def start(self, worker: Any) -> None:
        """Celery calls this when the worker starts."""
        self._endpoint = endpoint.start(endpoint.Monitor(engine_of(worker.app).deployment, worker))

    def stop(self, _worker: object) -> None:
        """Close the port. Celery calls this when the worker shuts down."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    terminate = stop


@after_setup_logger.connect  # type: ignore[untyped-decorator]
@after_setup_task_logger.connect  # type: ignore[untyped-decorator]
def choose_log_format(logger: logging.Logger, **_kwargs: object) -> None:
    """Write the log of this worker or beat as ``NEXUS_LOG_FORMAT`` says. Celery calls this when it has set up a log."""
    leave_out_prompts()
    try:
        json = load_settings().log_format == "json"
    except NexusError:  # the worker's start reports it
        return
    if json:
        write_json(logger)


@beat_init.connect  # type: ignore[untyped-decorator]
def monitor_beat(sender: Any, **_kwargs: object) -> None:
    """Serve the metrics and health pages of beat, until its process ends. ``sender`` is Celery's beat."""
    if has_jobs(sender.app):
        sentry.start()
        endpoint.start(endpoint.Monitor(engine_of(sender.app).deployment))


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
@worker_shutdown.connect  # type: ignore[untyped-decorator]
def flush_spans(**_kwargs: object) -> None:
    """Have the last spans sent before a worker, or a child of its prefork pool, ends. This takes 2 s at the most."""
    tracing.flush()


@tick
def recover_buffers(deployment: Deployment) -> dict[str, int]:
    """Store the session buffer of this worker's machine. Returns the numbers of stored messages and new jobs.

    A tick is a task of beat's schedule. Any other tick is done once in each interval of its schedule (for example once
    per hour), by one worker. This tick may be done by several workers, because every machine has a buffer folder of its
    own. When two workers store the same folder, each message is still stored once.

    Raises:
        StorageUnavailable: Postgres does not answer. Messages that were not stored stay in the buffer.
        BufferError: the folder cannot be read or written.
    """
    if not deployment.buffer.pending():
        return {"stored": 0, "enqueued": 0}
    report = buffer_flush.store_buffer(deployment)
    for damage in report.damages:
        done = "stays in" if damage.kind == "unreadable" else "was moved to"
        log.warning("A %s entry of the session buffer %s %s: %s", damage.kind, done, damage.kept_as, damage.reason)
    if report.stored:
        log.info("Stored %d messages from the session buffer.", report.stored)
    return {"stored": report.stored, "enqueued": report.enqueued}


__all__ = [
    "BufferStep",
    "ConsumerTimeoutStep",
    "DatabasePoolStep",
    "EndStep",
    "EventBatchesStep",
    "ForkServerStep",
    "GarbageStep",
    "IdentityStep",
    "MonitoringStep",
    "PatchStep",
    "ReconcileStep",
    "RedisClientStep",
    "SweepStep",
    "WatchdogStep",
    "preload",
    "recover_buffers",
]
