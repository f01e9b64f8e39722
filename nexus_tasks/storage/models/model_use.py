"""Tables of model calls and their costs, budget holds, saved answers, open questions, and message batches.

A message batch is a set of model requests that is sent to Anthropic's Message Batches API at half the price.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Numeric,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class ModelCall(Base):
    """The ledger: one row for every model call that returned an answer, even if the answer cannot be used.

    ``fault`` is the reason why the answer cannot be used. Erasing memories deletes no row of this table.
    """

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
    batched: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))  # made with the Message Batches API
    at: Mapped[datetime] = now_column()


class BudgetHold(Base):
    """The highest possible cost of a model call that is under way. The cost counts as spent until ``expires_at``.

    Without holds, several calls at the same time could together exceed the budget. ``claim_key`` and ``token`` name the
    run that makes the call. They are empty for a request in a message batch, which no run waits for, and for a call
    that no job makes, such as that of a question.
    """

    __tablename__ = "budget_holds"
    __table_args__ = (Index("ix_budget_holds_namespace_id", "namespace_id", "expires_at"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    cost_usd: Mapped[Decimal] = mapped_column(Numeric(14, 8))
    expires_at: Mapped[datetime]
    claim_key: Mapped[str] = mapped_column(server_default="")
    token: Mapped[str] = mapped_column(server_default="")


class SavedAnswer(Base):
    """A validated answer of a model, under the hash of its request.

    If the run dies before its commit, the next run of the job uses the answer, and does not pay for a second call.
    """

    __tablename__ = "saved_answers"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    request_hash: Mapped[str] = mapped_column(primary_key=True)
    answer: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = now_column()


class OpenQuestion(Base):
    """The memory ids in a run's question to the model. The run deletes the row when it commits.

    If the run dies, the next run asks the same question. ``about`` is the id of the perspective (purpose ``reflect``)
    or of the session (purpose ``digest``).
    """

    __tablename__ = "open_questions"

    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id", ondelete="CASCADE"), primary_key=True)
    purpose: Mapped[str] = mapped_column(primary_key=True)
    about: Mapped[int] = mapped_column(primary_key=True)
    question: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = now_column()


class MessageBatch(Base):
    """A batch of requests for the Message Batches API.

    ``api_id`` is the id that the API gave to the batch. It is ``None`` until the API has replied to the submission.
    ``token`` is the prefix of each request's custom id. If the worker dies before it has stored the reply, this prefix
    shows which batch at the API is this batch. ``items`` is the number of requests in the last submission. Until a
    submission begins it is ``None``: the API cannot know the batch.
    """

    __tablename__ = "message_batches"
    __table_args__ = (Index("ix_message_batches_namespace_id", "namespace_id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    token: Mapped[str] = mapped_column(unique=True)
    api_id: Mapped[str | None] = mapped_column(unique=True)
    rejected: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # API ids of other batches
    items: Mapped[int | None]
    cancelled_at: Mapped[datetime | None]  # when the API was asked to cancel the batch
    due_at: Mapped[datetime] = now_column()  # the time at which the batch is polled next
    created_at: Mapped[datetime] = now_column()


class BatchRequest(Base):
    """A model request for a message batch. Only jobs of the urgency ``dream`` (no caller waits) make such requests.

    An answered request has a ``result``. ``hold_id`` is the request's hold on the budget. The job of an ``abandoned``
    request no longer waits for the batch, because the API cannot say what became of the batch. When an answer to it
    comes after all, only the ledger gets it.
    """

    __tablename__ = "batch_requests"
    __table_args__ = (
        UniqueConstraint("namespace_id", "request_hash"),
        CheckConstraint("state IN ('queued','submitted','answered','failed','abandoned')", name="state"),
        Index("ix_batch_requests_batch_id", "batch_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    request_hash: Mapped[str]
    job_id: Mapped[str]
    purpose: Mapped[str]
    model: Mapped[str]
    params: Mapped[dict[str, Any]]
    sources: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))  # ids of the memories whose text the request contains
    state: Mapped[str] = mapped_column(server_default="queued")
    wanted: Mapped[bool] = mapped_column(Boolean, server_default=text("true"))  # false: no job needs the answer
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("message_batches.id", ondelete="SET NULL"))
    hold_id: Mapped[int | None]
    call_id: Mapped[int | None]  # the id of the call's entry in the ledger
    result: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = now_column()
