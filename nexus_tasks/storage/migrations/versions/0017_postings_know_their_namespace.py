"""Store the namespace of each posting, so that row-level security covers postings.

The number has 4 bytes, so that an entry of the index stays as large as before (32 bytes). Others read and write
meanwhile.
"""

from __future__ import annotations

from alembic import op

from nexus_tasks.storage.migrations.online import commit, for_all_pages, outside_transactions

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

REWRITES = ("postings",)  # see upgrade_plan.py
SECONDS_PER_MILLION_MEMORIES = 140

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
_KNOWN = "namespace_is_known"  # the name of a constraint


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
    # Writers wait here for a moment. One that waited for the postings, inside the trigger, would go on with the old
    # function. From here on, each new posting has its namespace.
    op.execute("LOCK TABLE memories IN SHARE ROW EXCLUSIVE MODE")
    op.execute("ALTER TABLE postings ADD COLUMN IF NOT EXISTS namespace_id integer")
    _functions(namespace=True)
    for_all_pages(
        "postings",
        "UPDATE postings SET namespace_id = memories.namespace_id FROM memories WHERE memories.id = memory_id"
        " AND postings.ctid >= CAST(:first AS tid) AND postings.ctid < CAST(:end AS tid)"
        " AND postings.namespace_id IS NULL",
    )
    # A checked constraint spares NOT NULL the search through all rows, for which others would wait.
    op.execute(f"ALTER TABLE postings DROP CONSTRAINT IF EXISTS {_KNOWN}")
    op.execute(f"ALTER TABLE postings ADD CONSTRAINT {_KNOWN} CHECK (namespace_id IS NOT NULL) NOT VALID")
    commit()
    op.execute(f"ALTER TABLE postings VALIDATE CONSTRAINT {_KNOWN}")
    commit()
    op.execute("ALTER TABLE postings ALTER COLUMN namespace_id SET NOT NULL")
    op.execute(f"ALTER TABLE postings DROP CONSTRAINT {_KNOWN}")
    outside_transactions(
        "DROP INDEX CONCURRENTLY IF EXISTS pk_postings_next",
        "CREATE UNIQUE INDEX CONCURRENTLY pk_postings_next ON postings (key, memory_id)"
        " INCLUDE (frequency, length, namespace_id)",
    )
    op.execute("ALTER TABLE postings DROP CONSTRAINT pk_postings")
    op.execute("ALTER TABLE postings ADD CONSTRAINT pk_postings PRIMARY KEY USING INDEX pk_postings_next")


def downgrade() -> None:
    op.execute("DROP POLICY IF EXISTS tenants ON postings")
    op.execute("ALTER TABLE postings DROP CONSTRAINT pk_postings")
    op.execute("ALTER TABLE postings DROP COLUMN namespace_id")
    op.execute(
        "ALTER TABLE postings ADD CONSTRAINT pk_postings PRIMARY KEY (key, memory_id) INCLUDE (frequency, length)"
    )
    _functions(namespace=False)
