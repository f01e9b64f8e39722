"""Tables of session digests (rolling summaries), requests for digests, and dreams (scheduled consolidations)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class DigestRequest(Base):
    """A request for a digest. The run that makes the digest deletes the row.

    The table is the outbox of the job ``digest_session``. ``dead`` means that this job has given up.
    """

    __tablename__ = "digest_requests"
    __table_args__ = (Index("ix_digest_requests_session_id", "session_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    reason: Mapped[str]
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    created_at: Mapped[datetime] = now_column()


class SessionDigest(Base):
    """A digest of the session's messages up to ``end_seq``. The digest's text is the memory ``memory_id``.

    Because of the unique key, two runs cannot store the same digest twice.
    """

    __tablename__ = "session_digests"
    __table_args__ = (UniqueConstraint("namespace_id", "session_id", "kind", "end_seq", "generation"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    end_seq: Mapped[int]
    generation: Mapped[int] = mapped_column(Integer)


class Dream(Base):
    """A dream: one consolidation of a namespace. ``sessions`` are the ids of the sessions that the dream digests.

    If the Celery chord that runs the dream's jobs is lost, the dream continues from this row.
    """

    __tablename__ = "dreams"
    __table_args__ = (
        CheckConstraint("state IN ('open','finished')", name="state"),
        # A namespace has at most one open dream.
        Index("uq_dreams_open", "namespace_id", unique=True, postgresql_where=text("state = 'open'")),
        Index("ix_dreams_namespace_id", "namespace_id", "started_at"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    state: Mapped[str] = mapped_column(server_default="open")
    urgency: Mapped[str] = mapped_column(server_default="dream")
    sessions: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    started_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]
