"""A run row may lack a namespace: the job has named a namespace that does not exist."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("job_runs", "namespace_id", nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM job_runs WHERE namespace_id IS NULL")
    op.alter_column("job_runs", "namespace_id", nullable=False)
