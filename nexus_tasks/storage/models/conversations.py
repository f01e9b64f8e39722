"""Tables of namespaces, sessions (conversations), and derivations (requests for facts from messages)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import Boolean, CheckConstraint, ForeignKey, Identity, Index, Integer, Numeric, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Namespace(Base):
    """A tenant and its settings.

    ``None`` in ``budget_usd_per_day`` or ``concurrency`` means the value of the deployment's setting. ``paused_at`` is
    the beginning of a pause, during which no job of the namespace begins. Until ``no_batches_until`` requests go live,
    because the model's provider has no message batches.

    ``residence`` says whether the namespace lives in this database, or moves between cells: ``draining`` (no job
    begins), ``leaving`` (it can only be read), ``arriving`` (it cannot be used yet) or ``left`` (another cell has it).
    ``other_cell`` is the cell that it goes to or comes from, and ``move_id`` the id of the move.
    """

    __tablename__ = "namespaces"
    __table_args__ = (
        CheckConstraint("residence IN ('here','draining','leaving','arriving','left')", name="residence"),
        Index("ix_namespaces_residence", "name", postgresql_where=text("residence <> 'here'")),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    observers: Mapped[list[str]] = mapped_column(server_default=text("'{assistant}'"))
    budget_usd_per_day: Mapped[Decimal | None] = mapped_column(Numeric(12, 4))
    concurrency: Mapped[int | None] = mapped_column(Integer)
    observe: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    scrub: Mapped[bool] = mapped_column(Boolean, server_default=text("true"))
    time_zone: Mapped[str] = mapped_column(server_default="UTC")  # of speakers whose messages name no time zone
    language: Mapped[str | None]  # of all its texts, as a text search configuration; ``None``: guessed for each text
    # While upkeep makes the words of the memories anew in the language, the id of the last memory that it has done.
    reworded_through: Mapped[int | None]
    instructions: Mapped[str] = mapped_column(server_default="")  # for models: what to keep, and what to leave out
    paused_at: Mapped[datetime | None]
    paused_reason: Mapped[str] = mapped_column(server_default="")
    no_batches_until: Mapped[datetime | None]
    residence: Mapped[str] = mapped_column(server_default="here")
    other_cell: Mapped[str | None]
    move_id: Mapped[str | None]
    created_at: Mapped[datetime] = now_column()


class SessionRow(Base):
    """A session: one conversation inside a namespace. (This is no SQLAlchemy session.)

    ``last_seq`` is the ``seq`` of the session's newest message. ``digest_end_seq`` is the ``seq`` of the last digested
    message. ``digest_generation`` rises when the digest of the same messages is made again. ``observe`` says whether an
    observation log replaces old messages. ``None`` in ``observe`` means the namespace's setting.
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


class Derivation(Base):
    """One observer's request for facts from one message. The table is the outbox of the job ``derive_memory``.

    ``batch`` is the name of the model call that contains the message. The run stores the name before the call. If the
    run dies, the next run sends the messages with the same name again, and finds the saved answer.
    """

    __tablename__ = "derivations"
    __table_args__ = (
        CheckConstraint("state IN ('wanted','done','dead')", name="state"),
        Index("ix_derivations_wanted", "id", postgresql_where=text("state = 'wanted'")),
        Index(
            "ix_derivations_wanted_namespace",
            "namespace_id",
            "memory_id",
            "created_at",
            postgresql_where=text("state = 'wanted'"),
        ),
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


class ErasedId(Base):
    """The id of an erased message, as a hash. A transcript that is read again does not bring the message back.

    The hash is SHA-256 in hexadecimal digits. Nothing of the message's text is kept.
    """

    __tablename__ = "erased_ids"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    id_hash: Mapped[str] = mapped_column(primary_key=True)
