"""Store the time of which a fact speaks (its event time), and the time zone of a message's speaker.

A message from the future gets the time at which it was stored, and so does a fact from it. ``claimed_at`` keeps the
message's own time. A digest gets the time of the last message that it covers. Before, it had the time at which it was
made, so that filters for times missed it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

LOCKS = {"memories": "readers and writers"}  # see upgrade_plan.py
SECONDS_PER_MILLION_MEMORIES = 10

_SKEW = "interval '1 minute'"


def upgrade() -> None:
    for name in ("event_from", "event_to", "claimed_at"):
        op.add_column("memories", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column("memories", sa.Column("time_zone", sa.Text(), nullable=True))
    op.add_column("namespaces", sa.Column("time_zone", sa.Text(), server_default=sa.text("'UTC'"), nullable=False))
    op.execute(
        "UPDATE memories SET claimed_at = occurred_at, occurred_at = created_at"
        f" WHERE level = 'raw' AND occurred_at > created_at + {_SKEW}"
    )
    op.execute(
        "UPDATE memories SET occurred_at = created_at, valid_from = created_at"
        " WHERE level IN ('explicit', 'derived', 'contradiction')"
        f" AND coalesce(valid_from, occurred_at) > created_at + {_SKEW}"
    )
    op.execute(f"UPDATE memories SET valid_to = created_at WHERE valid_to > now() + {_SKEW}")
    op.execute(
        """
        UPDATE memories AS m
        SET occurred_at = covered.last, valid_from = covered.last, event_from = covered.first,
            event_to = covered.last + interval '1 microsecond'
        FROM session_digests AS d
        CROSS JOIN LATERAL (
            SELECT min(said.occurred_at) AS first, max(said.occurred_at) AS last FROM memories AS said
            WHERE said.session_id = d.session_id AND said.level = 'raw' AND said.seq <= d.end_seq
        ) AS covered
        WHERE m.id = d.memory_id AND covered.last IS NOT NULL
        """
    )
    op.execute(
        """
        UPDATE memories AS m SET valid_to = greatest(m.valid_from, later.valid_from)
        FROM memories AS later
        WHERE m.level IN ('summary_short', 'summary_long') AND m.valid_to IS NOT NULL AND later.id = m.superseded_by
        """
    )


def downgrade() -> None:
    op.execute("UPDATE memories SET occurred_at = claimed_at WHERE claimed_at IS NOT NULL")
    op.drop_column("namespaces", "time_zone")
    for name in ("time_zone", "claimed_at", "event_to", "event_from"):
        op.drop_column("memories", name)
