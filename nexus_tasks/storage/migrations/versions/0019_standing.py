"""Store the standing of each memory: whose words it rests on.

The standing is a number from 1 (imported text) to 5 (a person's own words about themselves). A memory gets the lowest
standing of its sources. Others read and write meanwhile.
"""

from __future__ import annotations

from alembic import op

from nexus_tasks.storage.migrations.online import for_all_memories

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

REWRITES = ("memories",)  # see upgrade_plan.py
SECONDS_PER_MILLION_MEMORIES = 53

_ROLES = "CASE {0}.role WHEN 'user' THEN {1} WHEN 'assistant' THEN 3 WHEN 'tool' THEN 2 ELSE 1 END"
_RANGE = "m.id > :after AND m.id <= :last"
_FACTS = f"""
    UPDATE memories AS m SET standing = (
        SELECT min({_ROLES.format("source", "CASE WHEN source.author = m.author THEN 5 ELSE 4 END")})
        FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id = m.id AND e.role = 'derived_from'
    )
    WHERE {_RANGE} AND m.level = 'explicit'
"""
_CONCLUSIONS = f"""
    UPDATE memories AS m SET standing = (
        SELECT min(source.standing) FROM evidence AS e JOIN memories AS source ON source.id = e.source_id
        WHERE e.memory_id = m.id AND e.role IN ('reinforces', 'contradicts', 'insight_support')
    )
    WHERE {_RANGE} AND m.level IN ('derived', 'contradiction')
"""
_DIGESTS = f"""
    UPDATE memories AS m SET standing = (
        SELECT min(said.standing) FROM memories AS said
        WHERE said.session_id = d.session_id AND said.level = 'raw' AND said.seq <= d.end_seq
    )
    FROM session_digests AS d WHERE {_RANGE} AND m.id = d.memory_id
"""


def upgrade() -> None:
    op.execute("ALTER TABLE memories ADD COLUMN IF NOT EXISTS standing smallint")
    said = f"UPDATE memories AS m SET standing = {_ROLES.format('m', 5)} WHERE {_RANGE} AND level = 'raw'"
    for_all_memories(said, _FACTS)
    for_all_memories(_CONCLUSIONS, _DIGESTS)  # they rest on messages and facts of any id


def downgrade() -> None:
    op.drop_column("memories", "standing")
