"""Job runs: one row per finished job, and how to look up a job's outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import BigInteger, ColumnElement, bindparam, select, text, update

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, JobRun, Namespace
from nexus_tasks.types import JobOutcome, Status


@dataclass(frozen=True, kw_only=True)
class JobHeader:
    """The columns of a run row that describe the job, not its outcome.

    ``ids`` are the job's own id and the ids of the reruns that this job serves too.
    """

    ids: tuple[str, ...]
    kind: str
    scope: str
    reasons: tuple[str, ...]
    attempts: int
    queued_at: datetime | None
    started_at: datetime | None
    worker: Mapping[str, Any] | None = None  # node, host and pid of the process that ran it


# The model calls of a job and their cost, from the ledger. Each entry of the ledger names the job that made the call.
_SPENT = {
    "model_calls": "(SELECT count(*) FROM model_calls c WHERE c.job_id = r.job_id)",
    "cost_usd": "(SELECT coalesce(sum(c.cost_usd), 0) FROM model_calls c WHERE c.job_id = r.job_id)",
}


def record(tx: Transaction, namespace_id: int, jobs: Sequence[JobHeader], outcome: JobOutcome) -> None:
    """Write one run row per job id, in the transaction that commits the jobs' effects. Existing rows stay.

    When one model call served several jobs, the row of the job that made the call holds the whole cost. That job was
    the run's primary at the time of the call.
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
    """How a job ended: its run row, else its dead letter, else the newest run of the same kind and scope.

    Args:
        since: the time of the request, by the clock of Redis. A run of another job counts only when it started at or
            after this time, because an earlier run may not have seen the data of the request.
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
    """How a job has ended, or ``None`` while it is still to be done. A job has a run row for each of its ``ids``.

    Args:
        ids: the job's own id first, then those of the reruns that were merged into it.
        remade: Redis has forgotten the job. Then a closed dead letter ends it too, unless its retry is to be done.
        since: with a time, a run of the same kind and scope that began then or later ends the job too.
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


def find(tx: Transaction, job_id: str) -> tuple[JobRun, str] | None:
    """The run row of a job and the name of its namespace, or ``None``."""
    query = select(JobRun, Namespace.name).join(Namespace, Namespace.id == JobRun.namespace_id)
    return tx.execute(query.where(JobRun.job_id == job_id)).first()


def ids_that_begin_with(tx: Transaction, start: str, most: int) -> list[str]:
    """Job ids of runs that begin with ``start``."""
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
        namespace_id: only runs of this namespace; ``None`` means all namespaces.
        limit: the most rows returned.
        status: only runs that ended with this status.
        kind: only runs of this kind.
        skip: how many rows to leave out at the beginning.
    """
    query = (
        select(JobRun, Namespace.name)
        .join(Namespace, Namespace.id == JobRun.namespace_id)
        .where(*_conditions(namespace_id, status, kind))
        .order_by(JobRun.finished_at.desc(), JobRun.id.desc())
        .offset(skip)
        .limit(limit)
    )
    return list(tx.execute(query).all())


def _conditions(namespace_id: int | None, status: str | None, kind: str | None) -> list[ColumnElement[bool]]:
    wanted = ((JobRun.namespace_id, namespace_id), (JobRun.status, status), (JobRun.kind, kind))
    return [column == value for column, value in wanted if value is not None]


_FINISHED = text(
    """
    SELECT kind, status, count(*) AS jobs FROM job_runs
    WHERE finished_at >= :since AND finished_at < :until AND (:namespace_id IS NULL OR namespace_id = :namespace_id)
    GROUP BY kind, status
    UNION ALL
    SELECT kind, 'dead', count(*) FROM dead_letters
    WHERE last_at >= :since AND last_at < :until AND (:namespace_id IS NULL OR namespace_id = :namespace_id)
    GROUP BY kind
    ORDER BY kind, jobs DESC, status
    """
).bindparams(bindparam("namespace_id", type_=BigInteger))


def count_finished(
    tx: Transaction, since: datetime, until: datetime, namespace_id: int | None = None
) -> list[tuple[str, str, int]]:
    """How many jobs have finished from ``since`` to before ``until``, as (kind, status, number); dead letters too."""
    given = {"since": since, "until": until, "namespace_id": namespace_id}
    return [(kind, status, number) for kind, status, number in tx.execute(_FINISHED, given)]


def mark_reviews_dropped(tx: Transaction, namespace_id: int, kind: str, scope: str) -> None:
    """Change the status ``needs_review`` to ``dropped`` in a scope's runs, after the held plan was discarded."""
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
