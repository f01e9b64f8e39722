"""Let an evidence edge say that a memory is a duplicate of another memory."""

from __future__ import annotations

from alembic import op

from nexus_tasks.storage.migrations.online import commit

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_BEFORE = ("derived_from", "reinforces", "contradicts", "insight_support", "digested_from", "supersedes")


def _allow(*roles: str) -> None:
    listed = ",".join(repr(role) for role in roles)
    op.execute("ALTER TABLE evidence DROP CONSTRAINT ck_evidence_role")
    op.execute(f"ALTER TABLE evidence ADD CONSTRAINT ck_evidence_role CHECK (role IN ({listed})) NOT VALID")
    commit()
    op.execute("ALTER TABLE evidence VALIDATE CONSTRAINT ck_evidence_role")  # reads all rows, beside writers


def upgrade() -> None:
    _allow(*_BEFORE, "duplicate_of")


def downgrade() -> None:
    op.execute("DELETE FROM evidence WHERE role = 'duplicate_of'")
    _allow(*_BEFORE)
