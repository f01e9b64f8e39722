"""Tables of observation logs. A log is a text of dated notes that replaces the old messages of a long session."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class ObservationLog(Base):
    """A session's observation log. The table is the outbox of ``observe_session`` and ``reflect_observations``.

    ``observations`` is the log's text. It replaces the messages up to ``observed_through_seq``. ``observing`` and
    ``reflecting`` are the states of the two jobs.

    Every change of the log increments ``generation``. Most changes append text. ``rewritten`` is the generation of the
    last change that replaced the beginning of the text. The log is not shortened before it has ``reflect_from_tokens``
    tokens.

    ``current_task_at`` and ``suggested_response_at`` are the times of the newest messages of the notes that named the
    two. They are ``None`` when that was before the release that stores them.

    ``erasures`` counts the erasures of messages in the session. If the count rises after a run has read the log, the
    run stores nothing, because the run's text may come from erased messages.
    """

    __tablename__ = "observation_logs"
    __table_args__ = (
        CheckConstraint("observing IN ('idle','wanted','dead')", name="observing"),
        CheckConstraint("reflecting IN ('idle','wanted','dead')", name="reflecting"),
        Index("ix_observation_logs_observing", "id", postgresql_where=text("observing = 'wanted'")),
        Index("ix_observation_logs_reflecting", "id", postgresql_where=text("reflecting = 'wanted'")),
        UniqueConstraint("session_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    generation: Mapped[int] = mapped_column(Integer, server_default="0")
    observations: Mapped[str] = mapped_column(server_default="")
    current_task: Mapped[str] = mapped_column(server_default="")
    suggested_response: Mapped[str] = mapped_column(server_default="")
    current_task_at: Mapped[datetime | None]
    suggested_response_at: Mapped[datetime | None]
    observed_through_seq: Mapped[int] = mapped_column(server_default="0")
    rewritten: Mapped[int] = mapped_column(Integer, server_default="0")
    reflect_from_tokens: Mapped[int] = mapped_column(Integer, server_default="0")
    erasures: Mapped[int] = mapped_column(Integer, server_default="0")
    observing: Mapped[str] = mapped_column(server_default="idle")
    reflecting: Mapped[str] = mapped_column(server_default="idle")
    updated_at: Mapped[datetime] = now_column()


class ObservationChunk(Base):
    """Notes on the messages ``from_seq`` to ``through_seq``. The notes are not in the log yet, and may be empty.

    ``said_at`` is the time of the last of these messages.
    """

    __tablename__ = "observation_chunks"
    __table_args__ = (
        CheckConstraint("through_seq >= from_seq", name="covers"),
        UniqueConstraint("session_id", "from_seq"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    from_seq: Mapped[int]
    through_seq: Mapped[int]
    observations: Mapped[str]
    current_task: Mapped[str]
    suggested_response: Mapped[str]
    made_by: Mapped[str]
    said_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()


class ObservationReflection(Base):
    """A shorter text that will replace the first ``covered_length`` characters of a session's log.

    The shorter text was made from the log at the generation ``base_generation``. ``said_at`` is the time of the last
    message that this log covered.
    """

    __tablename__ = "observation_reflections"
    __table_args__ = (UniqueConstraint("session_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    base_generation: Mapped[int] = mapped_column(Integer)
    covered_length: Mapped[int] = mapped_column(Integer)
    observations: Mapped[str]
    current_task: Mapped[str]
    suggested_response: Mapped[str]
    made_by: Mapped[str]
    said_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()


class ObservationGeneration(Base):
    """The whole text of a session's log before a shorter text replaced its beginning.

    ``generation`` is the generation of the log that replaced this text. ``condensed_length`` is the length of that log,
    in characters. Its later notes stand behind this length. Rows are deleted after seven days.
    """

    __tablename__ = "observation_generations"
    __table_args__ = (UniqueConstraint("session_id", "generation"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    session_id: Mapped[int] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    generation: Mapped[int] = mapped_column(Integer)
    observations: Mapped[str]
    observed_through_seq: Mapped[int]
    condensed_length: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = now_column()
