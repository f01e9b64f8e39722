"""The jobs of the kill loop: one body as a job kind of ours, and as a task of plain Celery.

Each run records its worker and its start time in Redis. It has one effect in Postgres, with a natural key that prevents
a second effect, as in our real jobs. Workers import this module through CELERY_CONFIG_MODULE=benchmarks.kill_config.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import redis
from celery import Celery
from celery.signals import worker_ready
from sqlalchemy import Engine, create_engine, text

from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker import isolation
from nexus_tasks.idempotency.worker.run import ISOLATED_FROM
from nexus_tasks.jobs import Arguments, JobOutcome, Run, job
from nexus_tasks.llm.offline import OfflineModel

WATCHED = ("benchmarks.kill_jobs.kill_noop", "derive_memory")  # job kinds
MODEL_SECONDS = 0.5  # seconds that the offline model takes here for an answer: less than a real model


def work_seconds(n: int) -> float:
    """Seconds that a no-op job takes: half of the jobs 0.02, the others up to about 1, like a call over the network."""
    return 0.02 if n % 2 else 0.02 + n * 0.377 % 1.0


@lru_cache(maxsize=1)
def _clients(_pid: int) -> tuple[redis.Redis, Engine]:
    engine = create_engine(os.environ["NEXUS_DATABASE_URL"], pool_size=8, max_overflow=24)
    return redis.Redis.from_url(os.environ["NEXUS_REDIS_URL"], decode_responses=True), engine


def note(prefix: str, jobs: Sequence[str], *, started: bool = True) -> None:
    """Record that this process's worker, named by its process group, has begun ``jobs`` or lets the jobs wait."""
    how = f"{time.time()} {os.getpgid(0)} {int(started)}"
    _clients(os.getpid())[0].rpush(f"{prefix}:touches", *(f"{job} {how}" for job in jobs))


def note_ready(prefix: str) -> None:
    """Record that this process's worker is ready."""
    _clients(os.getpid())[0].rpush(f"{prefix}:ready", f"{os.getpgid(0)} {time.time()}")


def body(prefix: str, n: int, check: Any = None) -> None:
    """Sleep as long as the job works, have one effect, and record the end."""
    client, engine = _clients(os.getpid())
    if n == -1:
        os.kill(os.getpid(), 9)  # the poison job kills its process
    time.sleep(work_seconds(n))
    with engine.begin() as connection:
        if check:
            check()
        connection.execute(
            text("INSERT INTO kill_effects (who, n) VALUES (:who, :n) ON CONFLICT DO NOTHING"), {"who": prefix, "n": n}
        )
    client.rpush(f"{prefix}:ended", n)


class Number(Arguments):
    """The number of a job."""

    scope: ClassVar = ("namespace", "n")
    namespace: str
    n: int


@job(arguments=Number, queue="derive", immutable=True, while_running="drop")
def kill_noop(run: Run, arguments: Number) -> JobOutcome:
    """The no-op job as a job kind of ours."""
    body(os.environ["NEXUS_KEY_PREFIX"], arguments.n, run.check)
    return JobOutcome(status="completed")


def note_runs() -> None:
    """Record every run that gets claims, alone or as a batch. A run that waits for its process has not started."""
    hold = Run.hold

    def noting(run: Run, claims: Sequence[Claim]) -> None:
        hold(run, claims)
        if ours := [claim.job_id for claim in claims if claim.kind in WATCHED]:
            waits = run.primary.crashes >= ISOLATED_FROM and not isolation.in_pool_child()
            note(os.environ["NEXUS_KEY_PREFIX"], ours, started=not waits)

    Run.hold = noting  # type: ignore[method-assign]


def slow_down_the_model() -> None:
    """Slow the offline model down, so that kills hit runs that wait for it."""
    complete = OfflineModel.complete

    def slowly(model: OfflineModel, request: Any) -> Any:
        time.sleep(MODEL_SECONDS)
        return complete(model, request)

    OfflineModel.complete = slowly  # type: ignore[method-assign]


plain = Celery("plain", set_as_current=False)
plain.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    # Plain Celery's best case: unacknowledged messages come back after about 5 s, and every task is shorter.
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
    """The no-op job as a task of plain Celery."""
    prefix = f"plain-{os.environ['NEXUS_KEY_PREFIX']}"
    note(prefix, [plain_noop.request.id])
    body(prefix, n)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _on_ready(sender: Any, **_kwargs: Any) -> None:
    prefix = os.environ["NEXUS_KEY_PREFIX"]
    note_ready(f"plain-{prefix}" if sender.app is plain else prefix)


note_runs()
slow_down_the_model()
