"""The jobs of the kill loop: ours as a job kind, and the same body as a task of plain Celery.

Each run notes its start and end in Redis, and has one effect in Postgres, guarded by its natural key as a job's effects
are. Workers import this module by CELERY_CONFIG_MODULE=benchmarks.kill_config.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import redis
from celery import Celery
from sqlalchemy import Engine, create_engine, text

from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.heartbeat import Heartbeat
from nexus_tasks.idempotency.run import Run
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.types import JobOutcome

WORK_SECONDS = 0.02


@lru_cache(maxsize=1)
def _clients(_pid: int) -> tuple[redis.Redis, Engine]:
    engine = create_engine(os.environ["NEXUS_DATABASE_URL"], pool_size=8, max_overflow=24)
    return redis.Redis.from_url(os.environ["NEXUS_REDIS_URL"], decode_responses=True), engine


def body(prefix: str, n: int, check: Any = None) -> None:
    """Start, work, one effect, end."""
    client, engine = _clients(os.getpid())
    client.rpush(f"{prefix}:started", f"{n} {time.time()}")
    if n == -1:
        os.kill(os.getpid(), 9)  # the poison
    time.sleep(WORK_SECONDS)
    with engine.begin() as connection:
        if check:
            check()
        connection.execute(
            text("INSERT INTO kill_effects (who, n) VALUES (:who, :n) ON CONFLICT DO NOTHING"), {"who": prefix, "n": n}
        )
    client.rpush(f"{prefix}:ended", n)


class Number(Arguments):
    """One of many."""

    scope: ClassVar = ("namespace", "n")
    namespace: str
    n: int


@job(arguments=Number, queue="derive", immutable=True, while_running="drop")
def kill_noop(run: Run, arguments: Number) -> JobOutcome:
    """Ours."""
    body(os.environ["NEXUS_KEY_PREFIX"], arguments.n, run.check)
    return JobOutcome(status="completed")


def note_starts() -> None:
    """Note in Redis when each derivation starts to run, as the no-op jobs do themselves: also those of a batch."""
    hold = Heartbeat.hold

    def noting(heart: Heartbeat, run: Run, claims: Sequence[Claim]) -> None:
        hold(heart, run, claims)
        if derived := [claim for claim in claims if claim.kind == "derive_memory"]:
            client, prefix = _clients(os.getpid())[0], os.environ["NEXUS_KEY_PREFIX"]
            client.rpush(f"{prefix}:derive:started", *(f"{claim.job_id} {time.time()}" for claim in derived))

    Heartbeat.hold = noting  # type: ignore[method-assign]


plain = Celery("plain", set_as_current=False)
plain.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    # Plain Celery's best case: unacknowledged messages come back soon, and no task is as long as this.
    broker_transport_options={
        "visibility_timeout": 5,
        "unacked_restore_throttle": 1,
        "global_keyprefix": f"plain-{os.environ.get('NEXUS_KEY_PREFIX', '')}:",
    },
    worker_hijack_root_logger=False,
)
if "NEXUS_REDIS_URL" in os.environ:
    from nexus_tasks.embedded.urls import celery_url

    plain.conf.broker_url = celery_url(os.environ["NEXUS_REDIS_URL"])


@plain.task(name="plain.noop")  # type: ignore[untyped-decorator]
def plain_noop(n: int) -> None:
    """The same, carried by Celery alone."""
    body(f"plain-{os.environ['NEXUS_KEY_PREFIX']}", n)


note_starts()
