"""Add the table of wanted jobs: the jobs that callers ask for inside their own transactions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "wanted_jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("args", postgresql.JSONB(), nullable=False),
        sa.Column("asked", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'wanted'"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wanted_jobs")),
        sa.UniqueConstraint("kind", "scope", name=op.f("uq_wanted_jobs_kind_scope")),
        sa.CheckConstraint("state IN ('wanted','dead')", name=op.f("ck_wanted_jobs_state")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_wanted_jobs_namespace_id"), ondelete="CASCADE"
        ),
    )
    op.create_index("ix_wanted_jobs_namespace_id", "wanted_jobs", ["namespace_id"])
    op.create_index(
        "ix_wanted_jobs_wanted", "wanted_jobs", ["kind", "id"], postgresql_where=sa.text("state = 'wanted'")
    )


def downgrade() -> None:
    op.drop_table("wanted_jobs")
