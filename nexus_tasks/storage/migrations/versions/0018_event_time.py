"""Store the time of which a fact speaks (its event time), and the time zone of a message's speaker.

A message from the future gets the time at which it was stored, and so does a fact from it. ``claimed_at`` keeps the
message's own time. A digest gets the time of the last message that it covers. Before, it had the time at which it was
made, so that filters for times missed it. Others read and write meanwhile.
"""

from __future__ import annotations

from alembic import op

from nexus_tasks.storage.migrations.online import commit, for_all_memories

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SECONDS_PER_MILLION_MEMORIES = 6  # see upgrade_plan.py

_SKEW = "interval '1 minute'"


_TIMES = ("event_from", "event_to", "claimed_at")
_RANGE = "m.id > :after AND m.id <= :last"


def upgrade() -> None:
    columns = [*(f"{name} timestamptz" for name in _TIMES), "time_zone text"]
    op.execute(f"ALTER TABLE memories {', '.join(f'ADD COLUMN IF NOT EXISTS {column}' for column in columns)}")
    commit()
    op.execute("ALTER TABLE namespaces ADD COLUMN IF NOT EXISTS time_zone text NOT NULL DEFAULT 'UTC'")
    for_all_memories(
        "UPDATE memories AS m SET claimed_at = occurred_at, occurred_at = created_at"
        f" WHERE {_RANGE} AND level = 'raw' AND occurred_at > created_at + {_SKEW}",
        "UPDATE memories AS m SET occurred_at = created_at, valid_from = created_at"
        f" WHERE {_RANGE} AND level IN ('explicit', 'derived', 'contradiction')"
        f" AND coalesce(valid_from, occurred_at) > created_at + {_SKEW}",
        f"UPDATE memories AS m SET valid_to = created_at WHERE {_RANGE} AND valid_to > now() + {_SKEW}",
    )
    for_all_memories(
        f"""
        UPDATE memories AS m
        SET occurred_at = covered.last, valid_from = covered.last, event_from = covered.first,
            event_to = covered.last + interval '1 microsecond'
        FROM session_digests AS d
        CROSS JOIN LATERAL (
            SELECT min(said.occurred_at) AS first, max(said.occurred_at) AS last FROM memories AS said
            WHERE said.session_id = d.session_id AND said.level = 'raw' AND said.seq <= d.end_seq
        ) AS covered
        WHERE {_RANGE} AND m.id = d.memory_id AND covered.last IS NOT NULL
        """
    )
    for_all_memories(
        f"""
        UPDATE memories AS m SET valid_to = greatest(m.valid_from, later.valid_from)
        FROM memories AS later
        WHERE {_RANGE} AND m.level IN ('summary_short', 'summary_long') AND m.valid_to IS NOT NULL
            AND later.id = m.superseded_by
        """
    )


def downgrade() -> None:
    op.execute("UPDATE memories SET occurred_at = claimed_at WHERE claimed_at IS NOT NULL")
    op.drop_column("namespaces", "time_zone")
    for name in ("time_zone", *_TIMES):
        op.drop_column("memories", name)
