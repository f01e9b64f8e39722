"""Store the standing of each memory: whose words it rests on.

The standing is a number from 1 (imported text) to 5 (a person's own words about themselves). A memory gets the lowest
standing of its sources.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

LOCKS = {"memories": "readers and writers"}  # see upgrade_plan.py
REWRITES = ("memories",)
SECONDS_PER_MILLION_MEMORIES = 22

_ROLES = "CASE {0}.role WHEN 'user' THEN {1} WHEN 'assistant' THEN 3 WHEN 'tool' THEN 2 ELSE 1 END"
_CONCLUSIONS = """
    UPDATE memories AS m SET standing = rests.standing
    FROM (
        SELECT e.memory_id, min(source.standing) AS standing
        FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.role IN ('reinforces', 'contradicts', 'insight_support') GROUP BY e.memory_id
    ) AS rests
    WHERE m.id = rests.memory_id AND m.level IN ('derived', 'contradiction')
"""


def upgrade() -> None:
    op.add_column("memories", sa.Column("standing", sa.SmallInteger(), nullable=True))
    op.execute(f"UPDATE memories AS m SET standing = {_ROLES.format('m', 5)} WHERE m.level = 'raw'")
    op.execute(
        f"""
        UPDATE memories AS m SET standing = rests.standing
        FROM (
            SELECT e.memory_id,
                   min({_ROLES.format("source", "CASE WHEN source.author = fact.author THEN 5 ELSE 4 END")}) AS standing
            FROM evidence AS e
            JOIN memories AS source ON source.id = e.source_id
            JOIN memories AS fact ON fact.id = e.memory_id
            WHERE e.role = 'derived_from' GROUP BY e.memory_id
        ) AS rests
        WHERE m.id = rests.memory_id AND m.level = 'explicit'
        """
    )
    op.execute(_CONCLUSIONS)
    op.execute(
        """
        UPDATE memories AS m SET standing = rests.standing
        FROM (
            SELECT d.memory_id, min(said.standing) AS standing FROM session_digests AS d
            JOIN memories AS said ON said.session_id = d.session_id AND said.level = 'raw' AND said.seq <= d.end_seq
            GROUP BY d.memory_id
        ) AS rests
        WHERE m.id = rests.memory_id
        """
    )


def downgrade() -> None:
    op.drop_column("memories", "standing")
