"""Tables of webhooks and of their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class WebhookRow(Base):
    """An address that is told of events in a namespace. The secret signs what is sent, so it is stored as it is.

    ``failures`` counts the calls that failed since the last one that did not. A webhook that failed is not called
    before ``retry_at``. One with ``paused_at`` is not called before somebody resumes it. ``last_error`` says why.
    """

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_namespace_id", "namespace_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # a random name
    namespace_id: Mapped[int] = namespace_column()
    url: Mapped[str]
    events: Mapped[list[str]]
    secret: Mapped[str]
    failures: Mapped[int] = mapped_column(server_default="0")
    retry_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = now_column()


class WebhookDelivery(Base):
    """An event that a webhook is to be told. Wanted rows are the outbox of the job ``deliver_webhook``.

    ``about`` has names and ids, and no content.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("state IN ('wanted','sent','dead')", name="state"),
        Index("ix_webhook_deliveries_wanted", "id", postgresql_where=text("state = 'wanted'")),
        Index("ix_webhook_deliveries_namespace_id", "namespace_id"),
        Index("ix_webhook_deliveries_webhook_id", "webhook_id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event: Mapped[str]
    about: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default="wanted")
    created_at: Mapped[datetime] = now_column()
