"""Add an index that finds all memories of a session."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_memories_session_id", "memories", ["session_id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_memories_session_id", table_name="memories")
