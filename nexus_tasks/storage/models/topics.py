"""What is taken out of a session after a turn: how far that has come, and the topics it has made."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Extraction(Base):
    """A session that is extracted from: the cursor of each extractor by ``seq``, and the outbox of ``extract_session``.

    ``held``: the last assistant message waits for its tools, so the next message asks again. ``rejected`` counts what
    the model answered and nobody could use.
    """

    __tablename__ = "extractions"
    __table_args__ = (
        CheckConstraint("state IN ('idle','wanted','held','dead')", name="state"),
        Index("ix_extractions_wanted", "id", postgresql_where=text("state = 'wanted'")),
        UniqueConstraint("session_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(server_default="idle")
    topics_through_seq: Mapped[int] = mapped_column(server_default="0")
    facts_through_seq: Mapped[int] = mapped_column(server_default="0")
    rejected: Mapped[int] = mapped_column(Integer, server_default="0")
    updated_at: Mapped[datetime] = now_column()


class Topic(Base):
    """A file of knowledge of a namespace. ``revision`` tells whether its content is still what a run was shown."""

    __tablename__ = "topics"
    __table_args__ = (
        CheckConstraint("type IN ('user','feedback','project','reference')", name="type"),
        UniqueConstraint("namespace_id", "filename"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    filename: Mapped[str]
    name: Mapped[str]
    description: Mapped[str]
    type: Mapped[str]
    content: Mapped[str]
    revision: Mapped[int] = mapped_column(Integer, server_default="1")
    made_by: Mapped[str]
    created_at: Mapped[datetime] = now_column()
    updated_at: Mapped[datetime] = now_column()


class TopicSource(Base):
    """A message that a topic was written from."""

    __tablename__ = "topic_sources"
    __table_args__ = (Index("ix_topic_sources_memory_id", "memory_id"),)

    topic_id: Mapped[int] = mapped_column(ForeignKey("topics.id", ondelete="CASCADE"), primary_key=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
