"""Tenants."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import Boolean, Identity, Integer, Numeric, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, now_column


class Namespace(Base):
    """A tenant and its own settings; ``None`` means the process-wide setting."""

    __tablename__ = "namespaces"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    observers: Mapped[list[str]] = mapped_column(server_default=text("'{assistant}'"))
    budget_usd_per_day: Mapped[Decimal | None] = mapped_column(Numeric(12, 4))
    concurrency: Mapped[int | None] = mapped_column(Integer)
    observe: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    created_at: Mapped[datetime] = now_column()
