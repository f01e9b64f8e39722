"""Add the table of access tokens, and the audit log, which a trigger keeps append-only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# An entry that counts the uses of a token on a day may count further. Nothing else of an entry changes.
_KEEP = """
CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.day IS NOT NULL AND NEW.count > OLD.count AND to_jsonb(NEW) - 'count' = to_jsonb(OLD) - 'count' THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = '42501';
END $$
"""


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", ARRAY(sa.Text()), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("previous_digest", sa.Text(), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scopes <@ '{read,write,erase}' AND cardinality(scopes) > 0", name=op.f("ck_tokens_scopes")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_tokens_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index(
        "uq_tokens_name",
        "tokens",
        ["namespace_id", "name"],
        unique=True,
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), server_default="", nullable=False),
        sa.Column("token_name", sa.Text(), server_default="", nullable=False),
        sa.Column("user", sa.Text(), server_default="", nullable=False),
        sa.Column("host", sa.Text(), server_default="", nullable=False),
        sa.Column("counts", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("count", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("day", sa.Date(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("uq_audit_log_day", "audit_log", ["day", "action", "token_id", "reason"], unique=True)
    op.create_index("ix_audit_log_namespace", "audit_log", ["namespace", "id"])
    op.execute(_KEEP)
    op.execute(
        "CREATE TRIGGER keep_audit_log BEFORE UPDATE OR DELETE ON audit_log FOR EACH ROW"
        " EXECUTE FUNCTION keep_audit_log()"
    )
    op.execute(
        "CREATE TRIGGER keep_whole_audit_log BEFORE TRUNCATE ON audit_log FOR EACH STATEMENT"
        " EXECUTE FUNCTION keep_audit_log()"
    )


def downgrade() -> None:
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION keep_audit_log()")
    op.drop_table("tokens")
