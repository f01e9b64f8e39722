"""The tables. The namespace is in every unique key and every query; ids are never reused, times are UTC."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from pgvector.sqlalchemy import Vector
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Computed,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Naming and type conventions shared by every table."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: Text,
        int: BigInteger,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
    }


def _namespace() -> Mapped[int]:
    return mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"))


def _now() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())


class Namespace(Base):
    """A tenant and its own settings; ``None`` means the process-wide setting."""

    __tablename__ = "namespaces"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    observers: Mapped[list[str]] = mapped_column(server_default=text("'{assistant}'"))
    budget_usd_per_day: Mapped[Decimal | None] = mapped_column(Numeric(12, 4))
    concurrency: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime] = _now()


class Session(Base):
    """A conversation. ``last_seq`` numbers its messages; ``digest_end_seq`` is how far its digests reach."""

    __tablename__ = "sessions"
    __table_args__ = (UniqueConstraint("namespace_id", "session_key"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    session_key: Mapped[str]
    last_seq: Mapped[int] = mapped_column(server_default="0")
    digest_end_seq: Mapped[int] = mapped_column(server_default="0")
    digest_generation: Mapped[int] = mapped_column(Integer, server_default="0")
    ended_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _now()


class PerspectiveRow(Base):
    """Who holds memories about whom. Facts up to memory id ``reflected_through`` have been reflected on.

    ``held`` is the plan of a reflection that would change too much at once and waits for a person; ``dead`` says that
    reflecting gave up and left a dead letter.
    """

    __tablename__ = "perspectives"
    __table_args__ = (UniqueConstraint("namespace_id", "observer", "subject"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    observer: Mapped[str]
    subject: Mapped[str]
    reflected_through: Mapped[int] = mapped_column(server_default="0")
    held: Mapped[dict[str, Any] | None]
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))


class Memory(Base):
    """One row of knowledge. Raw memories are messages; the others belong to a perspective or, digests, to a session."""

    __tablename__ = "memories"
    __table_args__ = (
        CheckConstraint(
            "level IN ('raw','explicit','derived','contradiction','summary_short','summary_long')", name="level"
        ),
        Index(
            "uq_memories_session_seq",
            "namespace_id",
            "session_id",
            "seq",
            unique=True,
            postgresql_where=text("level = 'raw'"),
        ),
        Index(
            "uq_memories_message_key",
            "namespace_id",
            "session_id",
            "message_key",
            unique=True,
            postgresql_where=text("level = 'raw'"),
        ),
        # A fact is active once per perspective and wording: two derivations that say the same reinforce one row.
        Index(
            "uq_memories_active_fact",
            "namespace_id",
            "perspective_id",
            "content_key",
            unique=True,
            postgresql_where=text("level = 'explicit' AND valid_to IS NULL"),
        ),
        Index("ix_memories_perspective", "perspective_id", "level", "id"),
        Index("ix_memories_level", "namespace_id", "level", "occurred_at"),
        Index("ix_memories_superseded_by", "superseded_by", postgresql_where=text("superseded_by IS NOT NULL")),
        Index("ix_memories_tsv", "tsv", postgresql_using="gin"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    session_id: Mapped[int | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    perspective_id: Mapped[int | None] = mapped_column(ForeignKey("perspectives.id", ondelete="CASCADE"))
    level: Mapped[str]
    content: Mapped[str]
    tokens: Mapped[int] = mapped_column(Integer)
    author: Mapped[str | None]  # who said it; of a perspective's memory the subject, so that searches find the name
    occurred_at: Mapped[datetime]
    created_at: Mapped[datetime] = _now()

    # raw only
    seq: Mapped[int | None]
    role: Mapped[str | None]
    external_id: Mapped[str | None]
    message_key: Mapped[str | None]
    tool_calls: Mapped[list[Any] | None] = mapped_column(JSONB)
    archived_at: Mapped[datetime | None]

    # knowledge only
    content_key: Mapped[str | None]
    category: Mapped[str | None]
    labels: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    confidence: Mapped[float] = mapped_column(Float, server_default="1")
    times_reinforced: Mapped[int] = mapped_column(Integer, server_default="0")
    last_validated_at: Mapped[datetime | None]
    valid_from: Mapped[datetime | None]
    valid_to: Mapped[datetime | None]
    superseded_by: Mapped[int | None] = mapped_column(ForeignKey("memories.id", ondelete="SET NULL"))
    made_by: Mapped[str | None]

    tsv: Mapped[Any] = mapped_column(
        TSVECTOR,
        Computed("to_tsvector('english', coalesce(author, '') || ' ' || content)", persisted=True),
        deferred=True,  # for the index; as long as the content, and nobody reads it
    )


class Derivation(Base):
    """That an observer wants facts from a message: the outbox of ``derive_memory``.

    ``batch`` names the members of one model call, stored before the call, so that a rerun asks the same question.
    """

    __tablename__ = "derivations"
    __table_args__ = (
        CheckConstraint("state IN ('wanted','done','dead')", name="state"),
        Index("ix_derivations_wanted", "id", postgresql_where=text("state = 'wanted'")),
        Index(
            "ix_derivations_wanted_session",
            "session_id",
            "observer",
            "memory_id",
            postgresql_where=text("state = 'wanted'"),
        ),
        UniqueConstraint("memory_id", "observer"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"))
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    observer: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="wanted")
    batch: Mapped[str | None]
    created_at: Mapped[datetime] = _now()


class DigestRequest(Base):
    """That someone asked for a digest: the outbox of ``digest_session``. Deleted by the run that satisfies it."""

    __tablename__ = "digest_requests"
    __table_args__ = (Index("ix_digest_requests_session_id", "session_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    reason: Mapped[str]
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    created_at: Mapped[datetime] = _now()


class Evidence(Base):
    """An edge from a memory to one it rests on."""

    __tablename__ = "evidence"
    __table_args__ = (
        CheckConstraint(
            "role IN ('derived_from','reinforces','contradicts','insight_support','digested_from','supersedes')",
            name="role",
        ),
        Index("ix_evidence_source_id", "source_id", "role"),
    )

    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    role: Mapped[str] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = _namespace()


class SessionDigest(Base):
    """Which memory holds the digest of a session's window. Its natural key makes a digest's effects happen once."""

    __tablename__ = "session_digests"
    __table_args__ = (UniqueConstraint("namespace_id", "session_id", "kind", "end_seq", "generation"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    end_seq: Mapped[int]
    generation: Mapped[int] = mapped_column(Integer)


class Embedding(Base):
    """A memory's vector under one embedding model."""

    __tablename__ = "embeddings"

    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    vector: Mapped[Any] = mapped_column(Vector())


class ModelCall(Base):
    """The ledger: every model call that returned, whatever its answer was worth. Outlives what it was asked about."""

    __tablename__ = "model_calls"
    __table_args__ = (
        Index("ix_model_calls_namespace_id", "namespace_id", "at"),
        Index("ix_model_calls_job_id", "job_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    job_id: Mapped[str]
    purpose: Mapped[str]
    model: Mapped[str]
    fault: Mapped[str] = mapped_column(server_default="")
    input_tokens: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int] = mapped_column(Integer)
    cache_write_tokens: Mapped[int] = mapped_column(Integer)
    cache_read_tokens: Mapped[int] = mapped_column(Integer)
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8))
    seconds: Mapped[float] = mapped_column(Float)
    at: Mapped[datetime] = _now()


class BudgetHold(Base):
    """What a call under way may cost at the most, so that parallel calls do not overrun a budget together."""

    __tablename__ = "budget_holds"
    __table_args__ = (Index("ix_budget_holds_namespace_id", "namespace_id", "expires_at"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8))
    expires_at: Mapped[datetime]


class Dream(Base):
    """A consolidation of a namespace: the durable state behind its chord. ``sessions`` are the ids it digests."""

    __tablename__ = "dreams"
    __table_args__ = (
        CheckConstraint("state IN ('open','finished')", name="state"),
        # No new dream of a namespace while one is open.
        Index("uq_dreams_open", "namespace_id", unique=True, postgresql_where=text("state = 'open'")),
        Index("ix_dreams_namespace_id", "namespace_id", "started_at"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = _namespace()
    state: Mapped[str] = mapped_column(server_default="open")
    urgency: Mapped[str] = mapped_column(server_default="dream")
    sessions: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    started_at: Mapped[datetime] = _now()
    finished_at: Mapped[datetime | None]


class SavedAnswer(Base):
    """A validated answer under the hash of its request, so that a rerun does not pay again."""

    __tablename__ = "saved_answers"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    request_hash: Mapped[str] = mapped_column(primary_key=True)
    answer: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = _now()


class JobRun(Base):
    """One finished job, written in the transaction that holds its effects."""

    __tablename__ = "job_runs"
    __table_args__ = (
        Index("ix_job_runs_namespace_id", "namespace_id", "finished_at"),
        Index("ix_job_runs_scope", "kind", "scope", "finished_at"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[str] = mapped_column(unique=True)
    namespace_id: Mapped[int] = _namespace()
    kind: Mapped[str]
    scope: Mapped[str]
    status: Mapped[str]
    reasons: Mapped[list[str]]
    attempts: Mapped[int] = mapped_column(Integer, server_default="1")
    details: Mapped[dict[str, Any]]
    queued_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime] = _now()
    model_calls: Mapped[int] = mapped_column(Integer, server_default="0")
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8), server_default="0")


class DeadLetter(Base):
    """A job that gave up, kept until someone retries or drops it (``resolution``)."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        CheckConstraint("resolution IN ('retried','dropped')", name="resolution"),
        Index("ix_dead_letters_open", "namespace_id", "id", postgresql_where=text("resolution IS NULL")),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[str] = mapped_column(unique=True)
    namespace_id: Mapped[int] = _namespace()
    kind: Mapped[str]
    scope: Mapped[str]
    args: Mapped[dict[str, Any]]
    error_type: Mapped[str]
    message: Mapped[str]
    traceback: Mapped[str]
    errors: Mapped[int] = mapped_column(Integer)
    crashes: Mapped[int] = mapped_column(Integer)
    first_at: Mapped[datetime | None]
    last_at: Mapped[datetime] = _now()
    resolution: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
