"""Job runs and dead letters: how every job ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.bulk import insert_rows
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, JobRun, Namespace, OpenQuestion, SavedAnswer
from nexus_tasks.types import JobOutcome, Status


@dataclass(frozen=True, kw_only=True)
class JobHeader:
    """What a run row says about its job beside the outcome. ``ids``: the job's own, and reruns folded into it."""

    ids: tuple[str, ...]
    kind: str
    scope: str
    reasons: tuple[str, ...]
    attempts: int
    queued_at: datetime | None
    started_at: datetime | None


# What the model cost is entered with the job in whose name it was asked.
_SPENT = {
    "model_calls": "(SELECT count(*) FROM model_calls c WHERE c.job_id = r.job_id)",
    "cost_usd": "(SELECT coalesce(sum(c.cost_usd), 0) FROM model_calls c WHERE c.job_id = r.job_id)",
}


def record(tx: Transaction, namespace_id: int, jobs: Sequence[JobHeader], outcome: JobOutcome) -> None:
    """Write the run rows of a run's jobs, once per id, in the transaction that holds its effects.

    A batch is paid for once, and when its rerun has another lead, the row of the first one says so.
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
        }
        for job in jobs
        for job_id in job.ids
    ]
    insert_rows(tx, JobRun, rows, computed=_SPENT, on_conflict="DO NOTHING")


def outcome_of(tx: Transaction, job_id: str, kind: str, scope: str, since: datetime) -> JobOutcome | None:
    """How a job ended: by its run row or dead letter, else the newest run of the same work that has begun ``since``.

    By the claims' clock: a run that had begun before a request came cannot know of it.
    """
    run = tx.scalar(select(JobRun).where(JobRun.job_id == job_id))
    if run:
        return _outcome(run)
    letter = tx.scalar(select(DeadLetter).where(DeadLetter.job_id == job_id))
    if letter:
        status: Status = "dropped" if letter.resolution == "dropped" else "dead"
        return JobOutcome(status=status, job_id=job_id, details={"error": letter.message})
    run = tx.scalar(
        select(JobRun)
        .where(JobRun.kind == kind, JobRun.scope == scope, JobRun.started_at >= since)
        .order_by(JobRun.finished_at.desc())
        .limit(1)
    )
    return _outcome(run) if run else None


def _outcome(run: JobRun) -> JobOutcome:
    return JobOutcome(
        status=cast(Status, run.status),
        job_id=run.job_id,
        reasons=tuple(run.reasons),
        details=run.details,
    )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a job gave up."""

    error_type: str
    message: str
    traceback: str
    errors: int
    crashes: int
    first_at: datetime | None


def bury(
    tx: Transaction, namespace_id: int, *, job_id: str, kind: str, scope: str, args: Mapping[str, Any], why: Failure
) -> bool:
    """Write a dead letter; ``False`` when it is there already."""
    written = tx.execute(
        insert(DeadLetter)
        .values(
            job_id=job_id,
            namespace_id=namespace_id,
            kind=kind,
            scope=scope,
            args=dict(args),
            error_type=why.error_type,
            message=why.message,
            traceback=why.traceback,
            errors=why.errors,
            crashes=why.crashes,
            first_at=why.first_at,
        )
        .on_conflict_do_nothing()
        .returning(DeadLetter.id)
    )
    return written.first() is not None


def letter(tx: Transaction, job_id: str, *, lock: bool = False) -> DeadLetter | None:
    """The open dead letter of a job, or ``None``."""
    query = select(DeadLetter).where(DeadLetter.job_id == job_id, DeadLetter.resolution.is_(None))
    return tx.scalar(query.with_for_update() if lock else query)


def resolve(tx: Transaction, letter_id: int, resolution: str) -> None:
    """Mark a dead letter ``retried`` or ``dropped``."""
    tx.execute(
        update(DeadLetter)
        .where(DeadLetter.id == letter_id)
        .values(resolution=resolution, resolved_at=datetime.now(UTC))
    )


def dead_letters(
    tx: Transaction, namespace_id: int | None = None, limit: int = 100
) -> Sequence[tuple[DeadLetter, str]]:
    """Open dead letters with their namespaces, newest first."""
    query = (
        select(DeadLetter, Namespace.name)
        .join(Namespace, Namespace.id == DeadLetter.namespace_id)
        .where(DeadLetter.resolution.is_(None))
        .order_by(DeadLetter.id.desc())
        .limit(limit)
    )
    if namespace_id is not None:
        query = query.where(DeadLetter.namespace_id == namespace_id)
    return list(tx.execute(query).all())


def recent(
    tx: Transaction, namespace_id: int | None = None, limit: int = 100, *, status: str | None = None
) -> Sequence[tuple[JobRun, str]]:
    """Finished runs with their namespaces, newest first; with ``status`` only those that ended so."""
    query = (
        select(JobRun, Namespace.name)
        .join(Namespace, Namespace.id == JobRun.namespace_id)
        .order_by(JobRun.finished_at.desc(), JobRun.id.desc())
        .limit(limit)
    )
    if status is not None:
        query = query.where(JobRun.status == status)
    if namespace_id is not None:
        query = query.where(JobRun.namespace_id == namespace_id)
    return list(tx.execute(query).all())


def run(tx: Transaction, job_id: str) -> tuple[JobRun, str] | None:
    """The run row of a job with its namespace, or ``None``."""
    query = select(JobRun, Namespace.name).join(Namespace, Namespace.id == JobRun.namespace_id)
    return tx.execute(query.where(JobRun.job_id == job_id)).first()


def prune(tx: Transaction, *, days: int = 30) -> dict[str, int]:
    """Delete runs, and dead letters that were dealt with, older than ``days``; open dead letters stay.

    Saved answers and open questions of that age go too: nobody comes back for those of work that was put together
    anew.
    """
    before = datetime.now(UTC) - timedelta(days=days)
    runs = tx.execute(delete(JobRun).where(JobRun.finished_at < before).returning(JobRun.id)).all()
    letters = tx.execute(delete(DeadLetter).where(DeadLetter.resolved_at < before).returning(DeadLetter.id)).all()
    tx.execute(delete(OpenQuestion).where(OpenQuestion.created_at < before))
    left = delete(SavedAnswer).where(SavedAnswer.created_at < before).returning(SavedAnswer.request_hash)
    return {"job_runs": len(runs), "dead_letters": len(letters), "saved_answers": len(tx.execute(left).all())}


def any_letter(tx: Transaction, job_id: str) -> tuple[DeadLetter, str] | None:
    """A job's dead letter, open or dealt with, with its namespace; or ``None``."""
    query = select(DeadLetter, Namespace.name).join(Namespace, Namespace.id == DeadLetter.namespace_id)
    return tx.execute(query.where(DeadLetter.job_id == job_id)).first()


def count_dead(tx: Transaction, namespace_id: int) -> int:
    """Open dead letters of a namespace."""
    query = select(func.count()).where(DeadLetter.namespace_id == namespace_id, DeadLetter.resolution.is_(None))
    return int(tx.scalar(query) or 0)


def dropped(tx: Transaction, namespace_id: int, kind: str, scope: str) -> None:
    """Let the runs that asked for a review of this work say that it was discarded."""
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
