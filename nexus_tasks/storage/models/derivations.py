"""Which messages facts are wanted from."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


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
    namespace_id: Mapped[int] = namespace_column()
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"))
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    observer: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="wanted")
    batch: Mapped[str | None]
    created_at: Mapped[datetime] = now_column()
