"""Store what budgets, message batches and reflections need to be exact after crashes, erasures and undos.

- Which run made a hold on the budget, so that the hold of a dead run can be given back.
- What is known about a batch's submission, and that a provider has no message batches.
- Which facts a reflection must judge again, because they have changed since it asked about them.
- Which fact took the place of a fact that a reflection ended, and when.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nexus_tasks.storage.migrations.online import commit, create_index, for_all_pages

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

REWRITES = ("reflection_changes",)  # see upgrade_plan.py

_CHANGES = "reflection_changes"
_STATE = "state IN ('queued','submitted','answered','failed'{more})"


def _check_state(more: str) -> None:
    op.drop_constraint(op.f("ck_batch_requests_state"), "batch_requests", type_="check")
    op.create_check_constraint(op.f("ck_batch_requests_state"), "batch_requests", _STATE.format(more=more))


def _remember_what_took_the_place() -> None:
    op.execute(
        f"ALTER TABLE {_CHANGES} ADD COLUMN IF NOT EXISTS superseded_by bigint,"
        f" ADD COLUMN IF NOT EXISTS ended_at timestamptz, DROP CONSTRAINT IF EXISTS fk_{_CHANGES}_superseded_by"
    )
    op.create_foreign_key(
        op.f(f"fk_{_CHANGES}_superseded_by"), _CHANGES, "memories", ["superseded_by"], ["id"], ondelete="SET NULL"
    )
    create_index(f"ix_{_CHANGES}_superseded_by", f"{_CHANGES} (superseded_by) WHERE superseded_by IS NOT NULL")
    for_all_pages(
        _CHANGES,
        f"UPDATE {_CHANGES} AS c SET superseded_by = m.superseded_by, ended_at = m.valid_to"
        " FROM memories AS m, reflections AS r WHERE m.id = c.memory_id AND r.id = c.reflection_id AND c.superseded"
        " AND r.undone_at IS NULL AND m.valid_to IS NOT NULL AND c.ended_at IS NULL"
        " AND c.ctid >= CAST(:first AS tid) AND c.ctid < CAST(:end AS tid)",
    )


def upgrade() -> None:
    op.execute("ALTER TABLE namespaces ADD COLUMN IF NOT EXISTS no_batches_until timestamptz")
    commit()  # a writer that has memories waits for no namespace
    _remember_what_took_the_place()
    # From here on nothing takes long: others wait for these tables until the end.
    for name in ("claim_key", "token"):
        op.add_column("budget_holds", sa.Column(name, sa.Text(), server_default="", nullable=False))

    op.add_column("message_batches", sa.Column("items", sa.BigInteger(), nullable=True))
    op.add_column("message_batches", sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True))
    # The release before does not say which of its batches it has begun to submit.
    op.execute(
        "UPDATE message_batches AS b SET items ="
        " (SELECT count(*) FROM batch_requests AS r WHERE r.batch_id = b.id AND r.state = 'submitted')"
    )
    _check_state(",'abandoned'")

    op.add_column("perspectives", sa.Column("again", sa.ARRAY(sa.BigInteger()), server_default="{}", nullable=False))


def downgrade() -> None:
    op.drop_index("ix_reflection_changes_superseded_by", table_name="reflection_changes")
    op.drop_constraint(op.f("fk_reflection_changes_superseded_by"), "reflection_changes", type_="foreignkey")
    op.drop_column("reflection_changes", "ended_at")
    op.drop_column("reflection_changes", "superseded_by")

    op.drop_column("perspectives", "again")

    op.execute("DELETE FROM batch_requests WHERE state = 'abandoned'")
    _check_state("")
    op.drop_column("namespaces", "no_batches_until")
    op.drop_column("message_batches", "cancelled_at")
    op.drop_column("message_batches", "items")

    for name in ("token", "claim_key"):
        op.drop_column("budget_holds", name)
