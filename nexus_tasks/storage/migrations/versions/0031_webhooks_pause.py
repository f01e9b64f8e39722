"""Remember how often a webhook failed in a row, when it is called again, and that it is paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

HOOKS = "webhooks"
TIMES = ("retry_at", "paused_at")


def upgrade() -> None:
    op.add_column(HOOKS, sa.Column("failures", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column(HOOKS, sa.Column("last_error", sa.Text(), nullable=True))
    for name in TIMES:
        op.add_column(HOOKS, sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for name in (*TIMES, "last_error", "failures"):
        op.drop_column(HOOKS, name)
