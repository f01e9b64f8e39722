"""What the model was paid, may cost, and has answered."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Float, ForeignKey, Identity, Index, Integer, Numeric, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class ModelCall(Base):
    """The ledger: every model call that returned, whatever its answer was worth. Outlives what it was asked about."""

    __tablename__ = "model_calls"
    __table_args__ = (
        Index("ix_model_calls_namespace_id", "namespace_id", "at"),
        Index("ix_model_calls_job_id", "job_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    job_id: Mapped[str]
    purpose: Mapped[str]
    model: Mapped[str]
    fault: Mapped[str] = mapped_column(server_default="")
    input_tokens: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int] = mapped_column(Integer)
    cache_write_tokens: Mapped[int] = mapped_column(Integer)
    cache_read_tokens: Mapped[int] = mapped_column(Integer)
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8))
    seconds: Mapped[float] = mapped_column(Float)
    batched: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))  # through the Message Batches API
    at: Mapped[datetime] = now_column()


class BudgetHold(Base):
    """What a call under way may cost at the most, so that parallel calls do not overrun a budget together."""

    __tablename__ = "budget_holds"
    __table_args__ = (Index("ix_budget_holds_namespace_id", "namespace_id", "expires_at"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8))
    expires_at: Mapped[datetime]


class SavedAnswer(Base):
    """A validated answer under the hash of its request, so that a rerun does not pay again."""

    __tablename__ = "saved_answers"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    request_hash: Mapped[str] = mapped_column(primary_key=True)
    answer: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = now_column()


class OpenQuestion(Base):
    """What a run has asked about and not committed, by ids, so that its rerun asks the same and finds the answer.

    ``about`` is the perspective of a ``reflect``, the session of a ``digest``.
    """

    __tablename__ = "open_questions"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    purpose: Mapped[str] = mapped_column(primary_key=True)
    about: Mapped[int] = mapped_column(primary_key=True)
    question: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = now_column()
