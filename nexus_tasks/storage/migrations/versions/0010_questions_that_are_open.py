"""Add the table of open questions.

A row keeps the ids of the memories that a run asks the model about. If the run dies, the next run asks the same
question.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "open_questions",
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("about", sa.BigInteger(), nullable=False),
        sa.Column("question", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("namespace_id", "purpose", "about", name=op.f("pk_open_questions")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_open_questions_namespace_id"), ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table("open_questions")
