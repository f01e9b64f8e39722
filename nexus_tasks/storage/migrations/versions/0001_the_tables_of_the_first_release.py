"""Create the tables of the first release."""

from __future__ import annotations

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    op.create_table(
        "namespaces",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("observers", sa.ARRAY(sa.Text()), server_default=sa.text("'{assistant}'"), nullable=False),
        sa.Column("budget_usd_per_day", sa.Numeric(precision=12, scale=4), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_namespaces")),
        sa.UniqueConstraint("name", name=op.f("uq_namespaces_name")),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("args", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("error_type", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("resolution", sa.Text(), nullable=True),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("resolution IN ('retried','dropped')", name=op.f("ck_dead_letters_resolution")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_dead_letters_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("job_id", name=op.f("uq_dead_letters_job_id")),
    )
    op.create_index(
        "ix_dead_letters_open",
        "dead_letters",
        ["namespace_id", "id"],
        unique=False,
        postgresql_where=sa.text("resolution IS NULL"),
    )
    op.create_table(
        "job_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reasons", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="1", nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("model_calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=8), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_job_runs_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_runs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_job_runs_job_id")),
    )
    op.create_index("ix_job_runs_namespace_id", "job_runs", ["namespace_id", "finished_at"], unique=False)
    op.create_index("ix_job_runs_scope", "job_runs", ["kind", "scope", "finished_at"], unique=False)
    op.create_table(
        "model_calls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), server_default="", nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_read_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=8), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_model_calls_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    op.create_index("ix_model_calls_job_id", "model_calls", ["job_id"], unique=False)
    op.create_index("ix_model_calls_namespace_id", "model_calls", ["namespace_id", "at"], unique=False)
    op.create_table(
        "perspectives",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("observer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reflected_through", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("held", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("dead", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_perspectives_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_perspectives")),
        sa.UniqueConstraint(
            "namespace_id", "observer", "subject", name=op.f("uq_perspectives_namespace_id_observer_subject")
        ),
    )
    op.create_table(
        "saved_answers",
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_saved_answers_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("namespace_id", "request_hash", name=op.f("pk_saved_answers")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("digest_end_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("digest_generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_sessions_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("namespace_id", "session_key", name=op.f("uq_sessions_namespace_id_session_key")),
    )
    op.create_table(
        "digest_requests",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("dead", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_digest_requests_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_digest_requests_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_digest_requests")),
    )
    op.create_index("ix_digest_requests_session_id", "digest_requests", ["session_id"], unique=False)
    op.create_table(
        "memories",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=True),
        sa.Column("perspective_id", sa.BigInteger(), nullable=True),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("message_key", sa.Text(), nullable=True),
        sa.Column("tool_calls", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("content_key", sa.Text(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("labels", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("confidence", sa.Float(), server_default="1", nullable=False),
        sa.Column("times_reinforced", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_validated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_to", sa.DateTime(timezone=True), nullable=True),
        sa.Column("superseded_by", sa.BigInteger(), nullable=True),
        sa.Column("made_by", sa.Text(), nullable=True),
        sa.Column(
            "tsv",
            postgresql.TSVECTOR(),
            sa.Computed("to_tsvector('english', coalesce(author, '') || ' ' || content)", persisted=True),
            nullable=False,
        ),
        sa.CheckConstraint(
            "level IN ('raw','explicit','derived','contradiction','summary_short','summary_long')",
            name=op.f("ck_memories_level"),
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_memories_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["perspective_id"], ["perspectives.id"], name=op.f("fk_memories_perspective_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_memories_session_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["superseded_by"], ["memories.id"], name=op.f("fk_memories_superseded_by"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memories")),
    )
    op.create_index("ix_memories_level", "memories", ["namespace_id", "level", "occurred_at"], unique=False)
    op.create_index("ix_memories_perspective", "memories", ["perspective_id", "level", "id"], unique=False)
    op.create_index(
        "ix_memories_superseded_by",
        "memories",
        ["superseded_by"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NOT NULL"),
    )
    op.create_index("ix_memories_tsv", "memories", ["tsv"], unique=False, postgresql_using="gin")
    op.create_index(
        "uq_memories_active_fact",
        "memories",
        ["namespace_id", "perspective_id", "content_key"],
        unique=True,
        postgresql_where=sa.text("level = 'explicit' AND valid_to IS NULL"),
    )
    op.create_index(
        "uq_memories_message_key",
        "memories",
        ["namespace_id", "session_id", "message_key"],
        unique=True,
        postgresql_where=sa.text("level = 'raw'"),
    )
    op.create_index(
        "uq_memories_session_seq",
        "memories",
        ["namespace_id", "session_id", "seq"],
        unique=True,
        postgresql_where=sa.text("level = 'raw'"),
    )
    op.create_table(
        "derivations",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("observer", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="wanted", nullable=False),
        sa.Column("batch", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("state IN ('wanted','done','dead')", name=op.f("ck_derivations_state")),
        sa.ForeignKeyConstraint(
            ["memory_id"], ["memories.id"], name=op.f("fk_derivations_memory_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_derivations_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_derivations_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_derivations")),
        sa.UniqueConstraint("memory_id", "observer", name=op.f("uq_derivations_memory_id_observer")),
    )
    op.create_index(
        "ix_derivations_wanted", "derivations", ["id"], unique=False, postgresql_where=sa.text("state = 'wanted'")
    )
    op.create_index(
        "ix_derivations_wanted_session",
        "derivations",
        ["session_id", "observer", "memory_id"],
        unique=False,
        postgresql_where=sa.text("state = 'wanted'"),
    )
    op.create_table(
        "embeddings",
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("vector", pgvector.sqlalchemy.Vector(), nullable=False),
        sa.ForeignKeyConstraint(
            ["memory_id"], ["memories.id"], name=op.f("fk_embeddings_memory_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_embeddings_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("memory_id", "model", name=op.f("pk_embeddings")),
    )
    op.create_table(
        "evidence",
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("source_id", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "role IN ('derived_from','reinforces','contradicts','insight_support','digested_from','supersedes')",
            name=op.f("ck_evidence_role"),
        ),
        sa.ForeignKeyConstraint(["memory_id"], ["memories.id"], name=op.f("fk_evidence_memory_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_evidence_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["source_id"], ["memories.id"], name=op.f("fk_evidence_source_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("memory_id", "source_id", "role", name=op.f("pk_evidence")),
    )
    op.create_index("ix_evidence_source_id", "evidence", ["source_id", "role"], unique=False)
    op.create_table(
        "session_digests",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.BigInteger(), nullable=False),
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("end_seq", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["memory_id"], ["memories.id"], name=op.f("fk_session_digests_memory_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_session_digests_namespace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_session_digests_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_digests")),
        sa.UniqueConstraint(
            "namespace_id",
            "session_id",
            "kind",
            "end_seq",
            "generation",
            name=op.f("uq_session_digests_namespace_id_session_id_kind_end_seq_generation"),
        ),
    )
    op.create_index(op.f("ix_session_digests_memory_id"), "session_digests", ["memory_id"], unique=False)
    op.create_index(op.f("ix_session_digests_session_id"), "session_digests", ["session_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_session_digests_session_id"), table_name="session_digests")
    op.drop_index(op.f("ix_session_digests_memory_id"), table_name="session_digests")
    op.drop_table("session_digests")
    op.drop_index("ix_evidence_source_id", table_name="evidence")
    op.drop_table("evidence")
    op.drop_table("embeddings")
    op.drop_index(
        "ix_derivations_wanted_session", table_name="derivations", postgresql_where=sa.text("state = 'wanted'")
    )
    op.drop_index("ix_derivations_wanted", table_name="derivations", postgresql_where=sa.text("state = 'wanted'"))
    op.drop_table("derivations")
    op.drop_index("uq_memories_session_seq", table_name="memories", postgresql_where=sa.text("level = 'raw'"))
    op.drop_index("uq_memories_message_key", table_name="memories", postgresql_where=sa.text("level = 'raw'"))
    op.drop_index(
        "uq_memories_active_fact",
        table_name="memories",
        postgresql_where=sa.text("level = 'explicit' AND valid_to IS NULL"),
    )
    op.drop_index("ix_memories_tsv", table_name="memories", postgresql_using="gin")
    op.drop_index(
        "ix_memories_superseded_by", table_name="memories", postgresql_where=sa.text("superseded_by IS NOT NULL")
    )
    op.drop_index("ix_memories_perspective", table_name="memories")
    op.drop_index("ix_memories_level", table_name="memories")
    op.drop_table("memories")
    op.drop_index("ix_digest_requests_session_id", table_name="digest_requests")
    op.drop_table("digest_requests")
    op.drop_table("sessions")
    op.drop_table("saved_answers")
    op.drop_table("perspectives")
    op.drop_index("ix_model_calls_namespace_id", table_name="model_calls")
    op.drop_index("ix_model_calls_job_id", table_name="model_calls")
    op.drop_table("model_calls")
    op.drop_index("ix_job_runs_scope", table_name="job_runs")
    op.drop_index("ix_job_runs_namespace_id", table_name="job_runs")
    op.drop_table("job_runs")
    op.drop_index("ix_dead_letters_open", table_name="dead_letters", postgresql_where=sa.text("resolution IS NULL"))
    op.drop_table("dead_letters")
    op.drop_table("namespaces")
