"""Let an evidence edge say that a memory is a duplicate of another memory."""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_BEFORE = ("derived_from", "reinforces", "contradicts", "insight_support", "digested_from", "supersedes")


def _allow(*roles: str) -> None:
    op.drop_constraint("role", "evidence", type_="check")
    op.create_check_constraint("role", "evidence", f"role IN ({','.join(repr(role) for role in roles)})")


def upgrade() -> None:
    _allow(*_BEFORE, "duplicate_of")


def downgrade() -> None:
    op.execute("DELETE FROM evidence WHERE role = 'duplicate_of'")
    _allow(*_BEFORE)
