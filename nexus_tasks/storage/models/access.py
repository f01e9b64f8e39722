"""Tables of access tokens and of the audit log."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import CheckConstraint, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column, now_column


class Token(Base):
    """An access token of one namespace. The table contains the SHA-256 of the secret, and never the secret.

    ``previous_digest`` is the digest before the last rotation. It is valid until ``previous_until``. ``last_used_at``
    is the hour of the last use.
    """

    __tablename__ = "tokens"
    __table_args__ = (
        # A namespace has at most one valid token of a name.
        Index("uq_tokens_name", "namespace_id", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
        CheckConstraint("scopes <@ '{read,write,erase}' AND cardinality(scopes) > 0", name="scopes"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # a random name, which is part of the token
    namespace_id: Mapped[int] = namespace_column()
    name: Mapped[str]
    scopes: Mapped[list[str]]
    digest: Mapped[str]
    previous_digest: Mapped[str | None]
    previous_until: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()
    rotated_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class AuditRow(Base):
    """An entry of the audit log: an erasure, an export, a change of a token, or the use of a token.

    The table contains no content and no secret. It names the namespace by its name, so the entry outlives the
    namespace. A trigger refuses every deletion, and every change except a rising ``count``.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        # Uses of a token are counted in one row per day, action and reason. Other rows have no day.
        Index("uq_audit_log_day", "day", "action", "token_id", "reason", unique=True),
        Index("ix_audit_log_namespace", "namespace", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    at: Mapped[datetime] = now_column()
    namespace: Mapped[str | None]
    action: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default="")  # why a token was refused
    actor: Mapped[str]  # operator, worker or token
    token_id: Mapped[str] = mapped_column(server_default="")
    token_name: Mapped[str] = mapped_column(server_default="")
    user: Mapped[str] = mapped_column(server_default="")  # the user of the operating system
    host: Mapped[str] = mapped_column(server_default="")
    counts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    count: Mapped[int] = mapped_column(server_default="1")
    day: Mapped[date | None]
