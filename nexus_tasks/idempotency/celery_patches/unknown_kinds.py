"""Patch of Celery 5.7: a job whose kind a worker does not know waits for a worker that knows the kind.

Celery drops a message of an unknown task and stores its failure, although a worker of another release may know the
task. With this patch the claim (the job's record in Redis) waits for the reason ``version`` until a worker that knows
the kind wakes it. The message is acknowledged, because the worker that knows the kind sends another message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from celery.exceptions import Ignore
from celery.worker.consumer import Consumer

from nexus_tasks.idempotency.engine import engine_of, has_jobs
from nexus_tasks.idempotency.producer.wire_format import HEADER
from nexus_tasks.idempotency.worker.executor import leave_to_others

log = logging.getLogger(__name__)

NO_DIALECT = "-"  # instead of the kind's version (`JobKind.dialect`), in a worker that does not know the kind
_on_unknown_task = Consumer.on_unknown_task


def keep_jobs_of_unknown_kinds() -> None:
    """Make the workers of this process leave jobs of unknown kinds to other workers."""
    Consumer.on_unknown_task = _leave_or_reject


def _leave_or_reject(consumer: Any, body: Any, message: Any, error: Exception) -> None:
    header = message.headers.get(HEADER)
    if not has_jobs(consumer.app) or not isinstance(header, Mapping):
        _on_unknown_task(consumer, body, message, error)
        return
    if key := header.get("key"):  # without a key the claim stays pending, and the sweep sends another message
        _background().submit(_leave, consumer.app, message.headers["task"], str(key), message.headers["id"])
    message.ack_log_error(log, consumer.connection_errors)


@lru_cache(maxsize=1)
def _background() -> ThreadPoolExecutor:
    """A thread for calls of Redis and the broker, which would hold up the worker's event loop."""
    return ThreadPoolExecutor(1, "nexus-unknown-kinds")


def _leave(app: Any, task: str, key: str, job_id: str) -> None:
    try:
        leave_to_others(engine_of(app), task, key, job_id, NO_DIALECT)
    except Ignore:
        pass
    except Exception:
        log.exception("Job %s (%s) could not be left to another worker.", job_id, task)
