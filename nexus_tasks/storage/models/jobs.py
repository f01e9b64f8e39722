"""Tables of finished jobs, dead letters, wanted jobs, and the database's identity."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, CheckConstraint, ForeignKey, Identity, Index, Integer, Numeric, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class JobRun(Base):
    """One finished job. The row is written in the transaction that commits the job's effects.

    A job whose namespace does not exist has a row without ``namespace_id``; its ``details`` name the namespace.
    """

    __tablename__ = "job_runs"
    __table_args__ = (
        Index("ix_job_runs_namespace_id", "namespace_id", "finished_at"),
        Index("ix_job_runs_scope", "kind", "scope", "finished_at"),
        Index("ix_job_runs_finished_at", "finished_at", "kind", "status"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[str] = mapped_column(unique=True)
    namespace_id: Mapped[int | None] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))
    kind: Mapped[str]
    scope: Mapped[str]
    status: Mapped[str]
    reasons: Mapped[list[str]]
    attempts: Mapped[int] = mapped_column(Integer, server_default="1")
    details: Mapped[dict[str, Any]]
    queued_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime] = now_column()
    worker: Mapped[dict[str, Any] | None]  # node, host and pid of the process that ran the job
    model_calls: Mapped[int] = mapped_column(Integer, server_default="0")
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8), server_default="0")


class DeadLetter(Base):
    """A job that gave up. The dead letter is open until an operator retries or drops the job (``resolution``).

    A retry asks for the job with the same ``force``, ``reasons`` and ``urgency``.
    """

    __tablename__ = "dead_letters"
    __table_args__ = (
        CheckConstraint("resolution IN ('retried','dropped')", name="resolution"),
        Index("ix_dead_letters_open", "namespace_id", "id", postgresql_where=text("resolution IS NULL")),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[str] = mapped_column(unique=True)
    namespace_id: Mapped[int] = namespace_column()
    kind: Mapped[str]
    scope: Mapped[str]
    args: Mapped[dict[str, Any]]
    force: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    reasons: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    urgency: Mapped[str] = mapped_column(server_default="")
    worker: Mapped[dict[str, Any] | None]  # node, host and pid of the process that ran the job last
    error_type: Mapped[str]
    message: Mapped[str]
    traceback: Mapped[str]
    errors: Mapped[int] = mapped_column(Integer)
    crashes: Mapped[int] = mapped_column(Integer)
    first_at: Mapped[datetime | None]
    last_at: Mapped[datetime] = now_column()
    resolution: Mapped[str | None]
    resolved_at: Mapped[datetime | None]


class DatabaseIdentity(Base):
    """The identity of this database, a random id. The table has one row.

    Redis stores the ``id`` of the database that its claims (the records of jobs) belong to.
    """

    __tablename__ = "database_identity"
    __table_args__ = (CheckConstraint("single", name="single"),)

    single: Mapped[bool] = mapped_column(Boolean, primary_key=True, server_default=text("true"))
    id: Mapped[str] = mapped_column(server_default=text("gen_random_uuid()::text"))
    made_at: Mapped[datetime] = now_column()


class WantedJob(Base):
    """A job that a caller requested inside a transaction. The table is the outbox of durable job kinds.

    The row is deleted at the end of a run that began after the last request.
    """

    __tablename__ = "wanted_jobs"
    __table_args__ = (
        UniqueConstraint("kind", "scope"),
        CheckConstraint("state IN ('wanted','dead')", name="state"),
        Index("ix_wanted_jobs_namespace_id", "namespace_id"),
        Index("ix_wanted_jobs_wanted", "kind", "id", postgresql_where=text("state = 'wanted'")),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    kind: Mapped[str]
    scope: Mapped[str]
    args: Mapped[dict[str, Any]]
    asked: Mapped[int] = mapped_column(Integer, server_default="1")  # number of requests; see `wanted_jobs.settle`
    state: Mapped[str] = mapped_column(server_default="wanted")
    created_at: Mapped[datetime] = now_column()
