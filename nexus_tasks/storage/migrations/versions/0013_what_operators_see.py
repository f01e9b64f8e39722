"""Add columns and indexes for operators.

Dead letters get the flags of their jobs. Dead letters and job runs get the worker that ran the job. Namespaces get a
pause. The indexes speed up the counting of finished jobs and of wanted derivations.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from nexus_tasks.storage.migrations.online import create_index

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index("ix_job_runs_finished_at", "job_runs (finished_at, kind, status)")
    create_index(
        "ix_derivations_wanted_namespace",
        "derivations (namespace_id, memory_id, created_at) WHERE state = 'wanted'",
    )
    op.add_column("dead_letters", sa.Column("force", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column(
        "dead_letters",
        sa.Column("reasons", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )
    op.add_column("dead_letters", sa.Column("urgency", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("dead_letters", sa.Column("worker", postgresql.JSONB(), nullable=True))
    op.add_column("job_runs", sa.Column("worker", postgresql.JSONB(), nullable=True))
    op.add_column("namespaces", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("namespaces", sa.Column("paused_reason", sa.Text(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    op.drop_index("ix_derivations_wanted_namespace", "derivations")
    op.drop_index("ix_job_runs_finished_at", "job_runs")
    op.drop_column("namespaces", "paused_reason")
    op.drop_column("namespaces", "paused_at")
    op.drop_column("job_runs", "worker")
    for column in ("worker", "urgency", "reasons", "force"):
        op.drop_column("dead_letters", column)
