"""Add the tables and settings for observation, which replaces the old messages of a long session with notes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WANTED = (("observing", "observing = 'wanted'"), ("reflecting", "reflecting = 'wanted'"))


def upgrade() -> None:
    op.add_column("namespaces", sa.Column("observe", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("sessions", sa.Column("observe", sa.Boolean(), nullable=True))
    op.create_table(
        "observation_logs",
        *_owned("observation_logs"),
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        *(sa.Column(name, sa.Text(), server_default="", nullable=False) for name in TEXTS),
        sa.Column("observed_through_seq", sa.BigInteger(), server_default="0", nullable=False),
        *(
            sa.Column(name, sa.Integer(), server_default="0", nullable=False)
            for name in ("rewritten", "reflect_from_tokens", "erasures")
        ),
        *(sa.Column(name, sa.Text(), server_default="idle", nullable=False) for name, _ in WANTED),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.UniqueConstraint("session_id", name=op.f("uq_observation_logs_session_id")),
        *(
            sa.CheckConstraint(f"{name} IN ('idle','wanted','dead')", name=op.f(f"ck_observation_logs_{name}"))
            for name, _ in WANTED
        ),
    )
    for name, condition in WANTED:
        op.create_index(f"ix_observation_logs_{name}", "observation_logs", ["id"], postgresql_where=sa.text(condition))
    op.create_table(
        "observation_chunks",
        *_owned("observation_chunks"),
        sa.Column("from_seq", sa.BigInteger(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False),
        *_made(),
        sa.UniqueConstraint("session_id", "from_seq", name=op.f("uq_observation_chunks_session_id_from_seq")),
        sa.CheckConstraint("through_seq >= from_seq", name=op.f("ck_observation_chunks_covers")),
    )
    op.create_table(
        "observation_reflections",
        *_owned("observation_reflections"),
        sa.Column("base_generation", sa.Integer(), nullable=False),
        sa.Column("covered_length", sa.Integer(), nullable=False),
        *_made(),
        sa.UniqueConstraint("session_id", name=op.f("uq_observation_reflections_session_id")),
    )


TEXTS = ("observations", "current_task", "suggested_response")


def _owned(table: str) -> list[sa.schema.SchemaItem]:
    """The columns id, namespace_id and session_id, with their primary and foreign keys."""
    columns = [
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
    ]
    owners = (("namespace_id", "namespaces.id"), ("session_id", "sessions.id"))
    return [
        *columns,
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        *(
            sa.ForeignKeyConstraint([column], [owner], name=op.f(f"fk_{table}_{column}"), ondelete="CASCADE")
            for column, owner in owners
        ),
    ]


def _made() -> list[sa.schema.SchemaItem]:
    """The columns for a model's text, the model's name and the time."""
    return [
        *(sa.Column(name, sa.Text(), nullable=False) for name in (*TEXTS, "made_by")),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    ]


def downgrade() -> None:
    for table in ("observation_reflections", "observation_chunks", "observation_logs"):
        op.drop_table(table)
    op.drop_column("sessions", "observe")
    op.drop_column("namespaces", "observe")
