"""Consolidations of a namespace."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


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
    namespace_id: Mapped[int] = namespace_column()
    state: Mapped[str] = mapped_column(server_default="open")
    urgency: Mapped[str] = mapped_column(server_default="dream")
    sessions: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    started_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]
