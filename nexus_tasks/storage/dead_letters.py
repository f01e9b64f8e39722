"""Storing and reading dead letters. A dead letter is the row of a job that gave up.

A dead letter stays open until an operator retries or drops the job. A job gives up in three cases:

- ``idempotency/worker/retry_policy.py`` decides that the error of a run is final.
- The sweep (a loop of every worker) finds that a run has crashed, and that the job has no attempts left. By default,
  5 crashes and unknown errors use up the attempts.
- The arguments in a message are not valid for the job's kind.

In each case ``PostgresJobStorage`` in ``outbox.py`` calls :func:`store`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import defer

from nexus_tasks.storage import namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, Namespace

ERASED_ERROR = "The text of this error was deleted, because it may have quoted a memory that was erased."
LONGEST_MESSAGE, LONGEST_TRACEBACK = 10_000, 100_000  # characters; an error may quote a whole message or answer


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The last error of a job that gave up, and the numbers of the job's failures.

    ``errors`` counts the runs that raised an error. ``crashes`` counts the runs whose worker process died.
    ``first_at`` is the time of the first failure. The letter keeps the first 10,000 characters of ``message`` and the
    last 100,000 of ``traceback``.
    """

    error_type: str
    message: str
    traceback: str
    errors: int
    crashes: int
    first_at: datetime | None
    worker: Mapping[str, Any] | None = None  # node, host and pid of the process that ran the job last


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The flags with which the job was asked for. A retry asks for the job with the same flags."""

    force: bool = False
    reasons: tuple[str, ...] = ()
    urgency: str = ""


def store(
    tx: Transaction,
    namespace_id: int,
    *,
    job_id: str,
    kind: str,
    scope: str,
    args: Mapping[str, Any],
    asked: Asked,
    why: Failure,
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
            force=asked.force,
            reasons=list(asked.reasons),
            urgency=asked.urgency,
            worker=why.worker,
            error_type=why.error_type,
            message=why.message[:LONGEST_MESSAGE],
            traceback=why.traceback[-LONGEST_TRACEBACK:],
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
    query = select(DeadLetter).where(
        DeadLetter.job_id == job_id,
        DeadLetter.resolution.is_(None),
        namespaces.lives_here(DeadLetter.namespace_id),
    )
    return tx.scalar(query.with_for_update() if lock else query)


def find(tx: Transaction, job_id: str) -> tuple[DeadLetter, str] | None:
    """A job's dead letter, open or resolved, with the name of its namespace. ``None`` if the job has no letter."""
    query = select(DeadLetter, Namespace.name).join(Namespace, Namespace.id == DeadLetter.namespace_id)
    return tx.execute(query.where(DeadLetter.job_id == job_id, namespaces.lives_here(DeadLetter.namespace_id))).first()


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter that selects dead letters. A field with ``None`` restricts nothing.

    ``status`` is ``dead`` (the letter is open), ``retried`` or ``dropped``. ``error_type`` is the name of the error's
    class.
    """

    status: str = "dead"
    namespace_id: int | None = None
    kind: str | None = None
    error_type: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """The SQL conditions of the filter."""
        state = DeadLetter.resolution.is_(None) if self.status == "dead" else DeadLetter.resolution == self.status
        columns = (
            (DeadLetter.namespace_id, self.namespace_id),
            (DeadLetter.kind, self.kind),
            (DeadLetter.error_type, self.error_type),
        )
        here = namespaces.lives_here(DeadLetter.namespace_id)
        return [state, here, *(column == value for column, value in columns if value is not None)]


def listed(tx: Transaction, which: Filter, limit: int = 100, *, skip: int = 0) -> Sequence[tuple[DeadLetter, str]]:
    """At most ``limit`` selected dead letters with the names of their namespaces, newest first.

    The ``skip`` newest letters are left out. Tracebacks are not read.
    """
    query = (
        select(DeadLetter, Namespace.name)
        .options(defer(DeadLetter.traceback))
        .join(Namespace, Namespace.id == DeadLetter.namespace_id)
        .where(*which.conditions())
        .order_by(DeadLetter.id.desc())
        .offset(skip)
        .limit(limit)
    )
    return list(tx.execute(query).all())


def lock_open(tx: Transaction, which: Filter, limit: int, *, after: int) -> list[DeadLetter]:
    """Lock the ``limit`` oldest selected letters with ids above ``after``, until the transaction ends.

    Letters that another transaction has locked are left out.
    """
    query = (
        select(DeadLetter)
        .where(*which.conditions(), DeadLetter.id > after)
        .order_by(DeadLetter.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return list(tx.scalars(query))


def count(tx: Transaction, which: Filter) -> int:
    """The number of dead letters that the filter selects."""
    return int(tx.scalar(select(func.count()).select_from(DeadLetter).where(*which.conditions())) or 0)


def count_open(tx: Transaction, namespace_id: int | None = None) -> dict[int, int]:
    """The number of open dead letters of each namespace: namespace id → number.

    Namespaces without open letters are left out.

    Args:
        namespace_id: only this namespace. ``None`` means all namespaces.
    """
    query = select(DeadLetter.namespace_id, func.count()).where(DeadLetter.resolution.is_(None))
    if namespace_id is not None:
        query = query.where(DeadLetter.namespace_id == namespace_id)
    return dict(tx.execute(query.group_by(DeadLetter.namespace_id)).all())


def resolve(tx: Transaction, letter_id: int, resolution: str) -> None:
    """Close a dead letter with the resolution ``retried`` or ``dropped``."""
    closed = {"resolution": resolution, "resolved_at": func.now()}
    tx.execute(update(DeadLetter).where(DeadLetter.id == letter_id).values(**closed))


def ids_that_begin_with(tx: Transaction, start: str, most: int) -> list[str]:
    """At most ``most`` job ids of dead letters that begin with ``start``."""
    return list(
        tx.scalars(select(DeadLetter.job_id).where(DeadLetter.job_id.startswith(start, autoescape=True)).limit(most))
    )
