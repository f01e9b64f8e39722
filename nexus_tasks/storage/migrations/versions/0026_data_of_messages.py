"""Keep JSON that a producer gives with a message."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("memories", sa.Column("data", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("memories", "data")
