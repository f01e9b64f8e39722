"""Add the tables that record each reflection's changes, so that a reflection can be undone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MADE = sa.text("reflection_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "reflections",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("perspective_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("judged", postgresql.JSONB(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("undone_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_reflections_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["perspective_id"], ["perspectives.id"], name=op.f("fk_reflections_perspective_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reflections")),
    )
    op.create_index("ix_reflections_perspective_id", "reflections", ["perspective_id", "id"])
    op.create_index("ix_reflections_job_id", "reflections", ["job_id"])
    op.create_table(
        "reflection_changes",
        sa.Column("reflection_id", sa.BigInteger(), nullable=False),
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("reinforced", sa.Integer(), server_default="0", nullable=False),
        sa.Column("validated_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("validated_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("weakened", sa.Integer(), server_default="0", nullable=False),
        sa.Column("confidence_before", sa.Float(), nullable=True),
        sa.Column("confidence_after", sa.Float(), nullable=True),
        sa.Column("superseded", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(
            ["reflection_id"], ["reflections.id"], name=op.f("fk_reflection_changes_reflection_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["memory_id"], ["memories.id"], name=op.f("fk_reflection_changes_memory_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_reflection_changes_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("reflection_id", "memory_id", name=op.f("pk_reflection_changes")),
    )
    op.create_index("ix_reflection_changes_memory_id", "reflection_changes", ["memory_id", "reflection_id"])
    for table in ("memories", "evidence"):
        op.add_column(table, sa.Column("reflection_id", sa.BigInteger(), nullable=True))
        op.create_foreign_key(
            op.f(f"fk_{table}_reflection_id"), table, "reflections", ["reflection_id"], ["id"], ondelete="SET NULL"
        )
        op.create_index(f"ix_{table}_reflection_id", table, ["reflection_id"], postgresql_where=MADE)


def downgrade() -> None:
    for table in ("memories", "evidence"):
        op.drop_index(f"ix_{table}_reflection_id", table_name=table, postgresql_where=MADE)
        op.drop_constraint(op.f(f"fk_{table}_reflection_id"), table, type_="foreignkey")
        op.drop_column(table, "reflection_id")
    op.drop_table("reflection_changes")
    op.drop_table("reflections")
