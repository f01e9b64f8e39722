"""The jobs of the neighbours benchmark: the same body as a job kind of ours, and as a task of plain Celery.

A job sleeps, like a call over the network. When it begins it records its time, by its tenant. Workers import this
module through CELERY_CONFIG_MODULE=benchmarks.neighbour_config.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import ClassVar

import redis
from celery import Celery

from nexus_tasks.embedded.urls import celery_url
from nexus_tasks.jobs import Arguments, JobOutcome, Run, job


@lru_cache(maxsize=1)
def client(_pid: int) -> redis.Redis:
    """This process's client."""
    return redis.Redis.from_url(os.environ["NEXUS_REDIS_URL"], decode_responses=True)


def body(tenant: str, n: int, seconds: float) -> None:
    """Record the time, and sleep."""
    client(os.getpid()).rpush(f"{os.environ['NEXUS_KEY_PREFIX']}:begun:{tenant}", f"{n} {time.time()}")
    time.sleep(seconds)


class Nap(Arguments):
    """How long a job of a tenant sleeps."""

    scope: ClassVar = ("namespace", "n")
    namespace: str
    n: int
    milliseconds: int


@job(arguments=Nap, queue="derive", immutable=True, while_running="drop")
def nap(_run: Run, arguments: Nap) -> JobOutcome:
    """The job as a job kind of ours."""
    body(arguments.namespace, arguments.n, arguments.milliseconds / 1000)
    return JobOutcome(status="completed")


plain = Celery("plain", set_as_current=False)
plain.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    broker_url=celery_url(os.environ["NEXUS_REDIS_URL"]) if "NEXUS_REDIS_URL" in os.environ else None,
    broker_transport_options={"global_keyprefix": "plain:"},  # every run empties Redis
    worker_hijack_root_logger=False,
)


@plain.task(name="plain.nap")  # type: ignore[untyped-decorator]
def plain_nap(namespace: str, n: int, milliseconds: int) -> None:
    """The job as a task of plain Celery."""
    body(namespace, n, milliseconds / 1000)
