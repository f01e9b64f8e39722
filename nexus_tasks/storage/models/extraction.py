"""Tables of extraction: how far it has read each session, and the topics (files of knowledge) that it writes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Extraction(Base):
    """The extraction of a session. The table is the outbox of the job ``extract_session``.

    ``topics_through_seq`` is the ``seq`` of the last message that the extractor of topics has read.
    ``facts_through_seq`` is the ``seq`` of the last message that the extractor of facts has read. The state ``held``
    means that a tool call of the session's last assistant message has no result yet. The next stored message makes the
    row ``wanted`` again. ``rejected`` counts the items of model answers that failed validation.
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
    """A file of knowledge of a namespace.

    Each change increments ``revision``. A run compares revisions to find out whether the topic has changed after the
    run read it.
    """

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
    own: Mapped[str] = mapped_column(server_default="")  # the lines that no extraction wrote (see `topics.lines_of`)
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
