"""Store the namespace of each posting, so that row-level security covers postings.

The number has 4 bytes, so that an entry of the index stays as large as before (32 bytes).
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# See upgrade_plan.py.
LOCKS = {"memories": "writers", "postings": "searches"}
REWRITES = ("postings",)
SECONDS_PER_MILLION_MEMORIES = 17

_WORDS = """
    SELECT hashtextextended(word.lexeme, memory.namespace_id) AS key, memory.id AS memory_id,
           least(cardinality(word.positions), 32767) AS frequency, whole.length{namespace}
    FROM {memories} AS memory
    CROSS JOIN LATERAL (
        SELECT least(sum(cardinality(positions)), 32767) AS length FROM unnest(memory.tsv)
    ) AS whole
    CROSS JOIN LATERAL unnest(memory.tsv) AS word
"""
_DELETE_POSTINGS = """
    DELETE FROM postings USING {memories} AS memory, unnest(memory.tsv) AS word
    WHERE postings.key = hashtextextended(word.lexeme, memory.namespace_id) AND postings.memory_id = memory.id;
"""
_COUNT_MEMORIES = """
    INSERT INTO search_totals (namespace_id, model, count, length)
    SELECT namespaces.id, '', {sign} count(*), {sign} coalesce(sum(whole.length), 0)
    FROM {memories} AS memory
    JOIN namespaces ON namespaces.id = memory.namespace_id
    CROSS JOIN LATERAL (
        SELECT least(sum(cardinality(positions)), 32767) AS length FROM unnest(memory.tsv)
    ) AS whole
    GROUP BY namespaces.id;
"""


def _functions(*, namespace: bool) -> None:
    column = ", namespace_id" if namespace else ""
    value = ", memory.namespace_id::integer" if namespace else ""
    insert = f"INSERT INTO postings (key, memory_id, frequency, length{column}) {_WORDS} ON CONFLICT DO NOTHING;"
    bodies = {
        "index_added_memories": (
            insert.format(memories="added", namespace=value),
            _COUNT_MEMORIES.format(memories="added", sign="+"),
        ),
        "index_reworded_memory": (
            _DELETE_POSTINGS.format(memories="(SELECT OLD.*)"),
            insert.format(memories="(SELECT NEW.*)", namespace=value),
            _COUNT_MEMORIES.format(memories="(SELECT OLD.*)", sign="-"),
            _COUNT_MEMORIES.format(memories="(SELECT NEW.*)", sign="+"),
        ),
    }
    for name, statements in bodies.items():
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {''.join(statements)} RETURN NULL; END $$"
        )


def upgrade() -> None:
    # Writers wait here. One that waited for the postings, inside the trigger, would go on with the old function.
    op.execute("LOCK TABLE memories IN SHARE ROW EXCLUSIVE MODE")
    # A new table is written twice as fast as all rows of the old table are changed, and has no dead rows.
    op.execute("ALTER TABLE postings RENAME TO postings_before")
    op.execute(
        "CREATE TABLE postings (key bigint NOT NULL, memory_id bigint NOT NULL, frequency smallint NOT NULL,"
        " length smallint NOT NULL, namespace_id integer NOT NULL)"
    )
    op.execute(
        "INSERT INTO postings SELECT key, memory_id, frequency, length, memories.namespace_id"
        " FROM postings_before JOIN memories ON memories.id = memory_id"
    )
    op.execute("DROP TABLE postings_before")
    op.execute(
        "ALTER TABLE postings ADD CONSTRAINT pk_postings PRIMARY KEY (key, memory_id)"
        " INCLUDE (frequency, length, namespace_id)"
    )
    _functions(namespace=True)


def downgrade() -> None:
    op.execute("DROP POLICY IF EXISTS tenants ON postings")
    op.execute("ALTER TABLE postings DROP CONSTRAINT pk_postings")
    op.execute("ALTER TABLE postings DROP COLUMN namespace_id")
    op.execute(
        "ALTER TABLE postings ADD CONSTRAINT pk_postings PRIMARY KEY (key, memory_id) INCLUDE (frequency, length)"
    )
    _functions(namespace=False)
