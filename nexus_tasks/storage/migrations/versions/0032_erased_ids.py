"""Remember the ids of erased messages as hashes, so that no transcript brings the messages back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

TABLE = "erased_ids"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("id_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("namespace_id", "id_hash", name=op.f(f"pk_{TABLE}")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f(f"fk_{TABLE}_namespace_id"), ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table(TABLE)
