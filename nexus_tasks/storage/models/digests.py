"""The digests of sessions, and who asked for one."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Boolean, ForeignKey, Identity, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class DigestRequest(Base):
    """That someone asked for a digest: the outbox of ``digest_session``. Deleted by the run that satisfies it."""

    __tablename__ = "digest_requests"
    __table_args__ = (Index("ix_digest_requests_session_id", "session_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    reason: Mapped[str]
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    created_at: Mapped[datetime] = now_column()


class SessionDigest(Base):
    """Which memory holds the digest of a session's window. Its natural key makes a digest's effects happen once."""

    __tablename__ = "session_digests"
    __table_args__ = (UniqueConstraint("namespace_id", "session_id", "kind", "end_seq", "generation"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    end_seq: Mapped[int]
    generation: Mapped[int] = mapped_column(Integer)
