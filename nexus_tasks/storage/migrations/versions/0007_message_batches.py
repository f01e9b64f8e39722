"""Add the tables of message batches, and a ledger column that marks calls made through a message batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("model_calls", sa.Column("batched", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "message_batches",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("api_id", sa.Text(), nullable=True),
        sa.Column("rejected", sa.ARRAY(sa.Text()), server_default="{}", nullable=False),
        *(_moment(name) for name in ("due_at", "created_at")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_message_batches")),
        _namespace("message_batches"),
        sa.UniqueConstraint("token", name=op.f("uq_message_batches_token")),
        sa.UniqueConstraint("api_id", name=op.f("uq_message_batches_api_id")),
    )
    op.create_index("ix_message_batches_namespace_id", "message_batches", ["namespace_id"])
    op.create_table(
        "batch_requests",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("request_hash", "job_id", "purpose", "model")),
        sa.Column("params", postgresql.JSONB(), nullable=False),
        sa.Column("sources", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("wanted", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("batch_id", "hold_id", "call_id")),
        sa.Column("result", postgresql.JSONB(), nullable=True),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch_requests")),
        _namespace("batch_requests"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["message_batches.id"], name=op.f("fk_batch_requests_batch_id"), ondelete="SET NULL"
        ),
        sa.UniqueConstraint("namespace_id", "request_hash", name=op.f("uq_batch_requests_namespace_id_request_hash")),
        sa.CheckConstraint("state IN ('queued','submitted','answered','failed')", name=op.f("ck_batch_requests_state")),
    )
    op.create_index("ix_batch_requests_batch_id", "batch_requests", ["batch_id"])


def _moment(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _namespace(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_namespace_id")
    return sa.ForeignKeyConstraint(["namespace_id"], ["namespaces.id"], name=name, ondelete="CASCADE")


def downgrade() -> None:
    op.drop_table("batch_requests")
    op.drop_table("message_batches")
    op.drop_column("model_calls", "batched")
