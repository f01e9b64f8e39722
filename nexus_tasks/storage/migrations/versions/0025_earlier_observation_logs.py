"""Keep what a condensation of an observation log has replaced, and the times of its task and suggested response."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TIMES = (
    ("observation_logs", "current_task_at"),
    ("observation_logs", "suggested_response_at"),
    ("observation_chunks", "said_at"),
    ("observation_reflections", "said_at"),
)
TABLE = "observation_generations"


def upgrade() -> None:
    for table, name in TIMES:
        op.add_column(table, sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        TABLE,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("observations", sa.Text(), nullable=False),
        sa.Column("observed_through_seq", sa.BigInteger(), nullable=False),
        sa.Column("condensed_length", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
        *(
            sa.ForeignKeyConstraint([column], [owner], name=op.f(f"fk_{TABLE}_{column}"), ondelete="CASCADE")
            for column, owner in (("namespace_id", "namespaces.id"), ("session_id", "sessions.id"))
        ),
        sa.UniqueConstraint("session_id", "generation", name=op.f(f"uq_{TABLE}_session_id_generation")),
    )


def downgrade() -> None:
    op.drop_table(TABLE)
    for table, name in TIMES:
        op.drop_column(table, name)
