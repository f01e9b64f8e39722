"""Add the tables of topics, of the source messages of topics, and of extractions.

A row of the table ``extractions`` says how far extraction has read the messages of a session.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NOW = sa.text("now()")


def upgrade() -> None:
    op.create_table(
        "extractions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="idle", nullable=False),
        sa.Column("topics_through_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("facts_through_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rejected", sa.Integer(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_extractions")),
        sa.UniqueConstraint("session_id", name=op.f("uq_extractions_session_id")),
        sa.CheckConstraint("state IN ('idle','wanted','held','dead')", name=op.f("ck_extractions_state")),
        *_owned("extractions", ("namespace_id", "namespaces"), ("session_id", "sessions")),
    )
    op.create_index("ix_extractions_wanted", "extractions", ["id"], postgresql_where=sa.text("state = 'wanted'"))
    op.create_table(
        "topics",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("filename", "name", "description", "type", "content")
        ),
        sa.Column("revision", sa.Integer(), server_default="1", nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topics")),
        sa.UniqueConstraint("namespace_id", "filename", name=op.f("uq_topics_namespace_id_filename")),
        sa.CheckConstraint("type IN ('user','feedback','project','reference')", name=op.f("ck_topics_type")),
        *_owned("topics", ("namespace_id", "namespaces")),
    )
    op.create_table(
        "topic_sources",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "memory_id", name=op.f("pk_topic_sources")),
        *_owned("topic_sources", ("topic_id", "topics"), ("memory_id", "memories"), ("namespace_id", "namespaces")),
    )
    op.create_index("ix_topic_sources_memory_id", "topic_sources", ["memory_id"])


def _owned(table: str, *owners: tuple[str, str]) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([column], [f"{owner}.id"], name=op.f(f"fk_{table}_{column}"), ondelete="CASCADE")
        for column, owner in owners
    ]


def downgrade() -> None:
    for table in ("topic_sources", "topics", "extractions"):
        op.drop_table(table)
