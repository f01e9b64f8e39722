"""Let a memory expire, and let a memory be pinned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No column needs a rewrite of the table.
    op.add_column("memories", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("memories", sa.Column("erase_expired", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("memories", sa.Column("pinned_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_memories_expires_at", "memories", ["expires_at"], postgresql_where=sa.text("expires_at IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_memories_expires_at", table_name="memories")
    for column in ("pinned_at", "erase_expired", "expires_at"):
        op.drop_column("memories", column)
