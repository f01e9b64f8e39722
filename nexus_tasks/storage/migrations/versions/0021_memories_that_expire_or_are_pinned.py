"""Let a memory expire, and let a memory be pinned."""

from __future__ import annotations

from alembic import op

from nexus_tasks.storage.migrations.online import create_index

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No column needs a rewrite of the table.
    op.execute(
        "ALTER TABLE memories ADD COLUMN IF NOT EXISTS expires_at timestamptz,"
        " ADD COLUMN IF NOT EXISTS erase_expired boolean NOT NULL DEFAULT false,"
        " ADD COLUMN IF NOT EXISTS pinned_at timestamptz"
    )
    create_index("ix_memories_expires_at", "memories (expires_at) WHERE expires_at IS NOT NULL")


def downgrade() -> None:
    op.drop_index("ix_memories_expires_at", table_name="memories")
    for column in ("pinned_at", "erase_expired", "expires_at"):
        op.drop_column("memories", column)
