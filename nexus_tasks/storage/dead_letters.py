"""Dead letters: jobs that gave up. A dead letter stays open until an operator retries or drops the job.

``idempotency/worker/retry_policy.py`` decides that a run's error makes its job a dead letter, and the sweep decides it
for a job whose workers died. Both then call ``PostgresJobStorage.dead_letter`` in ``outbox.py``, which calls
:func:`store`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, Namespace


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The error of a job that gave up, and the job's failures.

    ``errors`` counts the runs that raised. ``crashes`` counts the runs that ended with a worker's death. ``first_at``
    is the time of the first failure.
    """

    error_type: str
    message: str
    traceback: str
    errors: int
    crashes: int
    first_at: datetime | None


def store(
    tx: Transaction, namespace_id: int, *, job_id: str, kind: str, scope: str, args: Mapping[str, Any], why: Failure
) -> bool:
    """Write a job's dead letter. Returns ``False`` when the job has one already."""
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


def open_letter(tx: Transaction, job_id: str, *, lock: bool = False) -> DeadLetter | None:
    """The open dead letter of a job, or ``None``. With ``lock`` the row stays locked until the transaction ends."""
    query = select(DeadLetter).where(DeadLetter.job_id == job_id, DeadLetter.resolution.is_(None))
    return tx.scalar(query.with_for_update() if lock else query)


def find(tx: Transaction, job_id: str) -> tuple[DeadLetter, str] | None:
    """A job's dead letter, open or resolved, and the name of its namespace; or ``None``."""
    query = select(DeadLetter, Namespace.name).join(Namespace, Namespace.id == DeadLetter.namespace_id)
    return tx.execute(query.where(DeadLetter.job_id == job_id)).first()


def list_open(tx: Transaction, namespace_id: int | None = None, limit: int = 100) -> Sequence[tuple[DeadLetter, str]]:
    """Open dead letters with the names of their namespaces, newest first.

    Args:
        namespace_id: only letters of this namespace; ``None`` means all namespaces.
        limit: the most rows returned.
    """
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


def count_open(tx: Transaction, namespace_id: int) -> int:
    """How many dead letters of a namespace are open."""
    query = select(func.count()).where(DeadLetter.namespace_id == namespace_id, DeadLetter.resolution.is_(None))
    return int(tx.scalar(query) or 0)


def resolve(tx: Transaction, letter_id: int, resolution: str) -> None:
    """Close a dead letter: ``resolution`` is ``retried`` or ``dropped``."""
    tx.execute(
        update(DeadLetter)
        .where(DeadLetter.id == letter_id)
        .values(resolution=resolution, resolved_at=datetime.now(UTC))
    )
