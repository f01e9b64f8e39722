"""What reflections changed, so that each can be undone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Float, ForeignKey, Identity, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class ReflectionRow(Base):
    """One reflection that changed something. Its memories and evidence edges carry its id.

    ``judged`` holds the ids that its relations and insights named, never a word: an undone reflection is remembered by
    them, so that no later one does the same again.
    """

    __tablename__ = "reflections"
    __table_args__ = (
        Index("ix_reflections_perspective_id", "perspective_id", "id"),
        Index("ix_reflections_job_id", "job_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    perspective_id: Mapped[int] = mapped_column(ForeignKey("perspectives.id", ondelete="CASCADE"))
    job_id: Mapped[str]
    judged: Mapped[dict[str, Any]]
    made_at: Mapped[datetime] = now_column()
    undone_at: Mapped[datetime | None]


class ReflectionChange(Base):
    """What one reflection changed in one fact: the state before and after it, of what it touched."""

    __tablename__ = "reflection_changes"
    __table_args__ = (Index("ix_reflection_changes_memory_id", "memory_id", "reflection_id"),)

    reflection_id: Mapped[int] = mapped_column(ForeignKey("reflections.id", ondelete="CASCADE"), primary_key=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    reinforced: Mapped[int] = mapped_column(Integer, server_default="0")  # times
    validated_before: Mapped[datetime | None]
    validated_after: Mapped[datetime | None]
    weakened: Mapped[int] = mapped_column(Integer, server_default="0")  # times
    confidence_before: Mapped[float | None] = mapped_column(Float)
    confidence_after: Mapped[float | None] = mapped_column(Float)
    superseded: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
