"""Store the cell of each namespace, and whether a namespace moves between cells."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("namespaces", sa.Column("residence", sa.Text(), server_default="here", nullable=False))
    op.add_column("namespaces", sa.Column("other_cell", sa.Text(), nullable=True))
    op.add_column("namespaces", sa.Column("move_id", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_namespaces_residence"),
        "namespaces",
        "residence IN ('here','draining','leaving','arriving','left')",
    )
    op.create_index("ix_namespaces_residence", "namespaces", ["name"], postgresql_where=sa.text("residence <> 'here'"))
    op.create_table(
        "cells",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cells")),
        sa.UniqueConstraint("number", name=op.f("uq_cells_number")),
        sa.UniqueConstraint("identity", name=op.f("uq_cells_identity")),
    )
    op.create_table(
        "placements",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("moving_to", sa.Text(), nullable=True),
        sa.Column("moved_from", sa.Text(), nullable=True),
        sa.Column("move_id", sa.Text(), nullable=True),
        sa.Column("placed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name=op.f("pk_placements")),
    )


def downgrade() -> None:
    op.drop_table("placements")
    op.drop_table("cells")
    op.drop_index("ix_namespaces_residence", table_name="namespaces")
    op.drop_constraint(op.f("ck_namespaces_residence"), "namespaces")
    for column in ("move_id", "other_cell", "residence"):
        op.drop_column("namespaces", column)
