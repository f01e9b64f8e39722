"""Add the table of the database's identity, and an index for finding the namespaces that are due for a dream.

A worker compares the database's identity with the identity in Redis, and stops when they differ.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nexus_tasks.storage.migrations.online import create_index

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index("ix_memories_created_at", "memories (namespace_id, level, created_at)")
    op.create_table(
        "database_identity",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Text(), server_default=sa.text("gen_random_uuid()::text"), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_database_identity")),
        sa.CheckConstraint("single", name=op.f("ck_database_identity_single")),
    )


def downgrade() -> None:
    op.drop_index("ix_memories_created_at", table_name="memories")
    op.drop_table("database_identity")
