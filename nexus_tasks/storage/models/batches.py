"""Requests that wait for the Message Batches API, and the batches that are under way."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Boolean, CheckConstraint, ForeignKey, Identity, Index, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class MessageBatch(Base):
    """A batch that was put together. ``api_id`` is unknown until the submission has returned; ``token`` begins the
    custom id of each of its items, so that a batch whose submission was cut off is recognised by its results.
    """

    __tablename__ = "message_batches"
    __table_args__ = (Index("ix_message_batches_namespace_id", "namespace_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    token: Mapped[str] = mapped_column(unique=True)
    api_id: Mapped[str | None] = mapped_column(unique=True)
    rejected: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # taken for this one, but were not
    due_at: Mapped[datetime] = now_column()  # when it is looked at next
    created_at: Mapped[datetime] = now_column()


class BatchRequest(Base):
    """A model request of urgency ``dream``: queued, in a batch, or back with its ``result`` (or without: failed)."""

    __tablename__ = "batch_requests"
    __table_args__ = (
        UniqueConstraint("namespace_id", "request_hash"),
        CheckConstraint("state IN ('queued','submitted','answered','failed')", name="state"),
        Index("ix_batch_requests_batch_id", "batch_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    request_hash: Mapped[str]
    job_id: Mapped[str]
    purpose: Mapped[str]
    model: Mapped[str]
    params: Mapped[dict[str, Any]]
    sources: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))  # ids of the memories whose text is in it
    state: Mapped[str] = mapped_column(server_default="queued")
    wanted: Mapped[bool] = mapped_column(Boolean, server_default=sql("true"))  # false: a live call went ahead of it
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("message_batches.id", ondelete="SET NULL"))
    hold_id: Mapped[int | None]
    call_id: Mapped[int | None]  # its entry in the ledger
    result: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = now_column()
