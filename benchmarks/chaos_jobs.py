"""The job of the chaos benchmark: a durable kind that writes its number (a mark) into a table in Postgres.

Workers import this module through CELERY_CONFIG_MODULE=benchmarks.chaos_config.
"""

from __future__ import annotations

import time
from typing import ClassVar

from sqlalchemy import text

from nexus_tasks.jobs import Arguments, JobOutcome, NamespaceRun, in_namespace, job

TABLE = "CREATE TABLE chaos_marks (n bigint PRIMARY KEY)"


class Number(Arguments):
    """The number that the job writes."""

    scope: ClassVar = ("namespace", "n")
    namespace: str
    n: int
    seconds: float = 0.05  # of work before the commit


@job(arguments=Number, queue="derive", name="benchmarks.chaos_mark", durable=True)
@in_namespace
def chaos_mark(work: NamespaceRun, arguments: Number) -> JobOutcome:
    """Work for a while, then write the number."""
    time.sleep(arguments.seconds)
    with work.database.transaction() as tx:
        tx.execute(text("INSERT INTO chaos_marks VALUES (:n) ON CONFLICT DO NOTHING"), {"n": arguments.n})
        return work.commit(tx, JobOutcome(status="completed"))
