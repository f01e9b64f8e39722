"""Conversations."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Identity, Integer, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Session(Base):
    """A conversation. ``last_seq`` numbers its messages; ``digest_end_seq`` is how far its digests reach.

    ``observe`` says whether its old messages are observed; ``None``: as the namespace has it.
    """

    __tablename__ = "sessions"
    __table_args__ = (UniqueConstraint("namespace_id", "session_key"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_key: Mapped[str]
    last_seq: Mapped[int] = mapped_column(server_default="0")
    digest_end_seq: Mapped[int] = mapped_column(server_default="0")
    digest_generation: Mapped[int] = mapped_column(Integer, server_default="0")
    observe: Mapped[bool | None]
    ended_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()
