"""Tell addresses of others about events: webhooks, and what they are to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

HOOKS, DELIVERIES = "webhooks", "webhook_deliveries"


def _now() -> sa.Column[object]:
    return sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _foreign(table: str, column: str, owner: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [owner], name=op.f(f"fk_{table}_{column}"), ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        HOOKS,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        _now(),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{HOOKS}")),
        _foreign(HOOKS, "namespace_id", "namespaces.id"),
    )
    op.create_index(f"ix_{HOOKS}_namespace_id", HOOKS, ["namespace_id"])
    op.create_table(
        DELIVERIES,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("about", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.Text(), server_default="wanted", nullable=False),
        _now(),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{DELIVERIES}")),
        sa.CheckConstraint("state IN ('wanted','sent','dead')", name=op.f(f"ck_{DELIVERIES}_state")),
        _foreign(DELIVERIES, "namespace_id", "namespaces.id"),
        _foreign(DELIVERIES, "webhook_id", "webhooks.id"),
    )
    op.create_index(f"ix_{DELIVERIES}_wanted", DELIVERIES, ["id"], postgresql_where=sa.text("state = 'wanted'"))
    for column in ("namespace_id", "webhook_id"):
        op.create_index(f"ix_{DELIVERIES}_{column}", DELIVERIES, [column])


def downgrade() -> None:
    op.drop_table(DELIVERIES)
    op.drop_table(HOOKS)
