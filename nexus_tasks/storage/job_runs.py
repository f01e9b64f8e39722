"""Storing job runs (one row per finished job), and finding the outcome of a job.

The scope of a job is JSON: the arguments that two requests for the same job share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import BigInteger, ColumnElement, bindparam, func, select, text, update

from nexus_tasks.storage import namespaces
from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, JobRun, Namespace
from nexus_tasks.types import JobOutcome, Status


@dataclass(frozen=True, kw_only=True)
class JobHeader:
    """The columns of a run row that describe the job, not its outcome.

    ``ids`` are the job's own id, then the ids of reruns that the job serves too. (A rerun is one more run that was
    asked for while a run of the job was under way.)
    """

    ids: tuple[str, ...]
    kind: str
    scope: str
    reasons: tuple[str, ...]
    attempts: int
    queued_at: datetime | None
    started_at: datetime | None
    worker: Mapping[str, Any] | None = None  # node, host and pid of the process that ran the job


# The model calls of a job and their cost, from the ledger. Each entry of the ledger names the job that made the call.
_SPENT = {
    "model_calls": "(SELECT count(*) FROM model_calls c WHERE c.job_id = r.job_id)",
    "cost_usd": "(SELECT coalesce(sum(c.cost_usd), 0) FROM model_calls c WHERE c.job_id = r.job_id)",
}


def record(tx: Transaction, namespace_id: int | None, jobs: Sequence[JobHeader], outcome: JobOutcome) -> None:
    """Write one run row per job id, in the transaction that commits the jobs' effects. Existing rows stay.

    When one model call served several jobs, the whole cost is in the row of one job: the run's primary job (the job
    that the run was started for) at the time of the call.

    Args:
        namespace_id: ``None`` when the jobs name a namespace that does not exist.
    """
    rows = [
        {
            "job_id": job_id,
            "namespace_id": namespace_id,
            "kind": job.kind,
            "scope": job.scope,
            "status": outcome.status,
            "reasons": list(job.reasons),
            "attempts": job.attempts,
            "details": dict(outcome.details),
            "queued_at": job.queued_at,
            "started_at": job.started_at,
            "worker": job.worker,
        }
        for job in jobs
        for job_id in job.ids
    ]
    insert_rows(tx, JobRun, rows, computed=_SPENT, on_conflict="DO NOTHING")


def find_outcome(tx: Transaction, job_id: str, kind: str, scope: str, since: datetime) -> JobOutcome | None:
    """How a job ended, or ``None`` when it has not ended. The first of these rows that exists decides:

    1. the run row of the job;
    2. the dead letter of the job;
    3. the newest run row of the same kind and scope whose run started at the time ``since`` or later.

    Args:
        since: the time of the request, by the clock of Redis. An earlier run of another job does not count, because it
            may not have seen the data of the request.
    """
    run = tx.scalar(select(JobRun).where(JobRun.job_id == job_id))
    if run:
        return _outcome(run)
    letter = tx.scalar(select(DeadLetter).where(DeadLetter.job_id == job_id))
    if letter:
        status: Status = "dropped" if letter.resolution == "dropped" else "dead"
        return JobOutcome(
            status=status, job_id=job_id, details={"error": letter.message, "error_type": letter.error_type}
        )
    run = tx.scalar(
        select(JobRun)
        .where(JobRun.kind == kind, JobRun.scope == scope, JobRun.started_at >= since)
        .order_by(JobRun.finished_at.desc())
        .limit(1)
    )
    return _outcome(run) if run else None


def find_end(
    tx: Transaction, ids: Sequence[str], kind: str, scope: str, *, remade: bool, since: datetime | None
) -> JobOutcome | None:
    """How a job has ended, or ``None`` when the job must still run.

    A job has ended when each of its ``ids`` has a run row, or when the job has an open dead letter.

    Args:
        ids: the job's own id, then the ids of the reruns that were merged into the job.
        remade: whether Redis had forgotten the job, so that a worker made its record again from a message. The job has
            then also ended when its dead letter was dropped. If the letter was retried, the job has ended when a run of
            the same kind and scope began after the retry.
        since: the job has also ended when a run of the same kind and scope began at this time or later. ``None``
            means that the runs of other jobs do not count.
    """
    rows = {run.job_id: run for run in tx.scalars(select(JobRun).where(JobRun.job_id.in_(ids)))}
    if len(rows) == len(set(ids)):
        return _outcome(rows[ids[0]])
    letter = tx.scalar(select(DeadLetter).where(DeadLetter.job_id == ids[0]))
    if letter and letter.resolution is None:
        return JobOutcome(status="dead", job_id=ids[0], details={"error": letter.message})
    if letter and remade:
        if letter.resolution == "dropped":
            return JobOutcome(status="dropped", job_id=ids[0])
        since = letter.resolved_at
    if since is None:
        return None
    query = select(JobRun).where(JobRun.kind == kind, JobRun.scope == scope, JobRun.started_at >= since)
    run = tx.scalar(query.order_by(JobRun.finished_at.desc()).limit(1))
    return _outcome(run) if run else None


def _outcome(run: JobRun) -> JobOutcome:
    return JobOutcome(
        status=cast(Status, run.status),
        job_id=run.job_id,
        reasons=tuple(run.reasons),
        details=run.details,
    )


_NAMESPACE = func.coalesce(Namespace.name, func.jsonb_extract_path_text(JobRun.details, "namespace"), "")


def find(tx: Transaction, job_id: str) -> tuple[JobRun, str] | None:
    """The run row of a job and the name of its namespace, or ``None``."""
    query = select(JobRun, _NAMESPACE).outerjoin(Namespace, Namespace.id == JobRun.namespace_id)
    return tx.execute(query.where(JobRun.job_id == job_id, namespaces.lives_here(JobRun.namespace_id))).first()


def ids_that_begin_with(tx: Transaction, start: str, most: int) -> list[str]:
    """At most ``most`` job ids of runs that begin with ``start``."""
    return list(tx.scalars(select(JobRun.job_id).where(JobRun.job_id.startswith(start, autoescape=True)).limit(most)))


def recent(
    tx: Transaction,
    namespace_id: int | None = None,
    limit: int = 100,
    *,
    status: str | None = None,
    kind: str | None = None,
    skip: int = 0,
) -> Sequence[tuple[JobRun, str]]:
    """Finished runs with the names of their namespaces, newest first.

    Args:
        namespace_id: only runs of this namespace. ``None`` means all namespaces.
        limit: the largest number of returned rows.
        status: only runs that ended with this status.
        kind: only runs of this job kind.
        skip: the number of newest rows to leave out.
    """
    query = (
        select(JobRun, _NAMESPACE)
        .outerjoin(Namespace, Namespace.id == JobRun.namespace_id)
        .where(*_conditions(namespace_id, status, kind))
        .order_by(JobRun.finished_at.desc(), JobRun.id.desc())
        .offset(skip)
        .limit(limit)
    )
    return list(tx.execute(query).all())


def _conditions(namespace_id: int | None, status: str | None, kind: str | None) -> list[ColumnElement[bool]]:
    wanted = ((JobRun.namespace_id, namespace_id), (JobRun.status, status), (JobRun.kind, kind))
    here = namespaces.lives_here(JobRun.namespace_id)
    return [here, *(column == value for column, value in wanted if value is not None)]


_OF_A_COPY = "EXISTS (SELECT FROM namespaces AS n WHERE n.id = namespace_id AND n.residence IN ('arriving', 'left'))"
_FINISHED = text(
    f"""
    SELECT kind, status, count(*) AS jobs FROM job_runs
    WHERE finished_at >= :since AND finished_at < :until AND (:namespace_id IS NULL OR namespace_id = :namespace_id)
      AND NOT {_OF_A_COPY}
    GROUP BY kind, status
    UNION ALL
    SELECT kind, 'dead', count(*) FROM dead_letters
    WHERE last_at >= :since AND last_at < :until AND (:namespace_id IS NULL OR namespace_id = :namespace_id)
      AND NOT {_OF_A_COPY}
    GROUP BY kind
    ORDER BY kind, jobs DESC, status
    """
).bindparams(bindparam("namespace_id", type_=BigInteger))


def count_finished(
    tx: Transaction, since: datetime, until: datetime, namespace_id: int | None = None
) -> list[tuple[str, str, int]]:
    """Count the jobs that finished at ``since`` or later and before ``until``, as (kind, status, number).

    A dead letter counts as a job of the status ``dead``.
    """
    given = {"since": since, "until": until, "namespace_id": namespace_id}
    return [(kind, status, number) for kind, status, number in tx.execute(_FINISHED, given)]


def mark_reviews_dropped(tx: Transaction, namespace_id: int, kind: str, scope: str) -> None:
    """Change the status ``needs_review`` to ``dropped`` in the run rows of a kind and scope.

    Call this function when the plan that waited for review was discarded.
    """
    tx.execute(
        update(JobRun)
        .where(
            JobRun.namespace_id == namespace_id,
            JobRun.kind == kind,
            JobRun.scope == scope,
            JobRun.status == "needs_review",
        )
        .values(status="dropped")
    )
