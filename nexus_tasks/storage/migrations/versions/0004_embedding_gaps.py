"""Add the table of embedding gaps: the namespaces whose memories lack vectors.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "embedding_gaps",
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_embedding_gaps_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("namespace_id", name=op.f("pk_embedding_gaps")),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("embedding_gaps")
