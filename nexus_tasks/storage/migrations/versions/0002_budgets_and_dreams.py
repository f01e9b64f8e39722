"""Add the tables of budget holds (money set aside for model calls under way) and dreams."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budget_holds",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=8), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_budget_holds_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_holds")),
    )
    op.create_index("ix_budget_holds_namespace_id", "budget_holds", ["namespace_id", "expires_at"], unique=False)
    op.create_table(
        "dreams",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("urgency", sa.Text(), server_default="dream", nullable=False),
        sa.Column("sessions", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('open','finished')", name=op.f("ck_dreams_state")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_dreams_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dreams")),
    )
    op.create_index("ix_dreams_namespace_id", "dreams", ["namespace_id", "started_at"], unique=False)
    op.create_index(
        "uq_dreams_open", "dreams", ["namespace_id"], unique=True, postgresql_where=sa.text("state = 'open'")
    )


def downgrade() -> None:
    op.drop_index("uq_dreams_open", table_name="dreams", postgresql_where=sa.text("state = 'open'"))
    op.drop_index("ix_dreams_namespace_id", table_name="dreams")
    op.drop_table("dreams")
    op.drop_index("ix_budget_holds_namespace_id", table_name="budget_holds")
    op.drop_table("budget_holds")
