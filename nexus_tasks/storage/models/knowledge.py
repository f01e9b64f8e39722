"""Tables of memories, their evidence and vectors, perspectives, and the changes that reflections made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pgvector.sqlalchemy import Vector
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    FetchedValue,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    SmallInteger,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Memory(Base):
    """One row of knowledge.

    A memory of level ``raw`` is a message of a session. A memory of level ``summary_short`` or ``summary_long`` is a
    digest of a session. A memory of any other level belongs to a perspective, which is an observer and a subject.
    """

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
        # A perspective has at most one valid fact with the same normalised content. When the fact is derived again, the
        # number of its reinforcements rises.
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
        Index("ix_memories_created_at", "namespace_id", "level", "created_at"),
        Index("ix_memories_superseded_by", "superseded_by", postgresql_where=text("superseded_by IS NOT NULL")),
        Index("ix_memories_reflection_id", "reflection_id", postgresql_where=text("reflection_id IS NOT NULL")),
        Index("ix_memories_author", "namespace_id", "author"),
        Index("ix_memories_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
        Index("ix_memories_session_id", "session_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    perspective_id: Mapped[int | None] = mapped_column(ForeignKey("perspectives.id", ondelete="CASCADE"))
    level: Mapped[str]
    content: Mapped[str]
    tokens: Mapped[int] = mapped_column(Integer)
    # The author of a message, or the subject of a fact. A question that names this person finds it sooner.
    author: Mapped[str | None]
    # The time at which the memory was said. A message from the future has the time of its storing here, and its own
    # time in ``claimed_at``. A digest has the time of the last message that it covers.
    occurred_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    # The time of which a fact speaks, and the time from the first to the last message that a digest covers.
    event_from: Mapped[datetime | None]
    event_to: Mapped[datetime | None]
    time_zone: Mapped[str | None]  # of the speaker of a message, or of a fact's earliest source; ``None`` means UTC
    created_at: Mapped[datetime] = now_column()

    # Only memories of level ``raw`` (messages) use these columns.
    seq: Mapped[int | None]
    role: Mapped[str | None]
    external_id: Mapped[str | None]
    message_key: Mapped[str | None]
    tool_calls: Mapped[list[Any] | None] = mapped_column(JSONB)
    data: Mapped[str | None]  # a JSON object of the producer; as text, so that the order of its keys stays
    archived_at: Mapped[datetime | None]

    # Only memories of the other levels use these columns.
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
    # Whose words the memory rests on (see ``types.names.standing_rank``); ``None`` when it is unknown.
    standing: Mapped[int | None] = mapped_column(SmallInteger)
    reflection_id: Mapped[int | None] = mapped_column(ForeignKey("reflections.id", ondelete="SET NULL"))

    # From this time on, the memory counts as superseded. A fact has the latest time of its messages, or none when a
    # message has none. With ``erase_expired`` the hourly prune then erases the memory.
    expires_at: Mapped[datetime | None]
    erase_expired: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    pinned_at: Mapped[datetime | None]

    tsv: Mapped[Any] = mapped_column(
        TSVECTOR,
        nullable=True,
        # A trigger makes it by ``search_terms``, in the language of the namespace. The author is not in it: a name is
        # said in thousands of messages (see ``cognition/retrieval/fusion.py``).
        server_default=FetchedValue(),
        server_onupdate=FetchedValue(),
        # Loading a memory leaves out this column, which is as large as the content. Only the triggers that write
        # postings and the upkeep of search read it.
        deferred=True,
    )


class Evidence(Base):
    """An edge from a memory to a source memory. ``role`` names the relation of the two memories."""

    __tablename__ = "evidence"
    __table_args__ = (
        CheckConstraint(
            "role IN ('derived_from','reinforces','contradicts','insight_support','digested_from','supersedes',"
            "'duplicate_of')",
            name="role",
        ),
        Index("ix_evidence_source_id", "source_id", "role"),
        Index("ix_evidence_reflection_id", "reflection_id", postgresql_where=text("reflection_id IS NOT NULL")),
    )

    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    source_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    role: Mapped[str] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    reflection_id: Mapped[int | None] = mapped_column(ForeignKey("reflections.id", ondelete="SET NULL"))


class Embedding(Base):
    """The vector that one embedding model made for a memory."""

    __tablename__ = "embeddings"
    __table_args__ = (Index("ix_embeddings_namespace_id", "namespace_id", "model"),)

    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    vector: Mapped[Any] = mapped_column(Vector())


class EmbeddingGap(Base):
    """A mark that some memories of a namespace have no vector. The table is the outbox of ``embed_memories``."""

    __tablename__ = "embedding_gaps"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    since: Mapped[datetime]


class PerspectiveRow(Base):
    """A perspective: the memories that ``observer`` has about ``subject``.

    The watermark ``reflected_through`` is the id of the last fact that a reflection has read. ``held`` is the plan of a
    reflection that would change too much at once. The plan waits for a person's review. ``again`` has the ids of facts
    that a reflection must judge again, because they have changed since it asked about them. ``dead`` means that the
    reflection of this perspective gave up and is a dead letter.
    """

    __tablename__ = "perspectives"
    __table_args__ = (UniqueConstraint("namespace_id", "observer", "subject"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    observer: Mapped[str]
    subject: Mapped[str]
    reflected_through: Mapped[int] = mapped_column(server_default="0")
    held: Mapped[dict[str, Any] | None]
    again: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))


class ReflectionRow(Base):
    """One reflection that changed memories.

    The memories and evidence edges that a reflection makes have the reflection's id in ``reflection_id``. ``judged``
    contains the ids of the memories in the reflection's relations and insights, and no text. After an undo, later
    reflections compare these ids, and do not make the same changes again.
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
    """The change of one fact by one reflection, with the changed columns' values before and after.

    When the reflection ended the fact (``superseded``), ``superseded_by`` is the fact that took its place, and
    ``ended_at`` is the time.
    """

    __tablename__ = "reflection_changes"
    __table_args__ = (
        Index("ix_reflection_changes_memory_id", "memory_id", "reflection_id"),
        Index(
            "ix_reflection_changes_superseded_by",
            "superseded_by",
            postgresql_where=text("superseded_by IS NOT NULL"),
        ),
    )

    reflection_id: Mapped[int] = mapped_column(ForeignKey("reflections.id", ondelete="CASCADE"), primary_key=True)
    memory_id: Mapped[int] = mapped_column(ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    reinforced: Mapped[int] = mapped_column(Integer, server_default="0")  # number of reinforcements
    validated_before: Mapped[datetime | None]
    validated_after: Mapped[datetime | None]
    weakened: Mapped[int] = mapped_column(Integer, server_default="0")  # number of times the confidence was lowered
    confidence_before: Mapped[float | None] = mapped_column(Float)
    confidence_after: Mapped[float | None] = mapped_column(Float)
    superseded: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    superseded_by: Mapped[int | None] = mapped_column(ForeignKey("memories.id", ondelete="SET NULL"))
    ended_at: Mapped[datetime | None]
