"""Who holds memories about whom."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Identity, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from nexus_tasks.storage.models.base import Base, namespace_column


class PerspectiveRow(Base):
    """Who holds memories about whom. Facts up to memory id ``reflected_through`` have been reflected on.

    ``held`` is the plan of a reflection that would change too much at once and waits for a person; ``dead`` says that
    reflecting gave up and left a dead letter.
    """

    __tablename__ = "perspectives"
    __table_args__ = (UniqueConstraint("namespace_id", "observer", "subject"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    namespace_id: Mapped[int] = namespace_column()
    observer: Mapped[str]
    subject: Mapped[str]
    reflected_through: Mapped[int] = mapped_column(server_default="0")
    held: Mapped[dict[str, Any] | None]
    dead: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
