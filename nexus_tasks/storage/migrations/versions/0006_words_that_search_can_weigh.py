"""Add tables for search: postings (the words of each memory), common words, and totals.

Triggers of this migration write postings and totals. ``storage/searching/upkeep.py`` writes common words.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# This query gives one row per word of each memory in the relation {memories}, with the columns of a posting.
_WORDS = """
    SELECT hashtextextended(word.lexeme, memory.namespace_id) AS key, memory.id AS memory_id,
           least(cardinality(word.positions), 32767) AS frequency, whole.length
    FROM {memories} AS memory
    CROSS JOIN LATERAL (
        SELECT least(sum(cardinality(positions)), 32767) AS length FROM unnest(memory.tsv)
    ) AS whole
    CROSS JOIN LATERAL unnest(memory.tsv) AS word
"""
_INSERT_POSTINGS = f"""
    INSERT INTO postings (key, memory_id, frequency, length) {_WORDS}
    ON CONFLICT DO NOTHING;  -- two words of one memory with the same hash
"""
_DELETE_POSTINGS = """
    DELETE FROM postings USING {memories} AS memory, unnest(memory.tsv) AS word
    WHERE postings.key = hashtextextended(word.lexeme, memory.namespace_id) AND postings.memory_id = memory.id;
"""
# Each statement adds one row per namespace. The join leaves out a namespace that is being deleted.
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
_COUNT_VECTORS = """
    INSERT INTO search_totals (namespace_id, model, count, length)
    SELECT namespaces.id, vector.model, {sign} count(*), 0
    FROM {vectors} AS vector
    JOIN namespaces ON namespaces.id = vector.namespace_id
    GROUP BY namespaces.id, vector.model;
"""


def _function(name: str, *statements: str) -> str:
    body = "".join(statements)
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$"


FUNCTIONS = {
    "index_added_memories": (
        _INSERT_POSTINGS.format(memories="added"),
        _COUNT_MEMORIES.format(memories="added", sign="+"),
    ),
    "index_removed_memories": (
        _DELETE_POSTINGS.format(memories="removed"),
        _COUNT_MEMORIES.format(memories="removed", sign="-"),
    ),
    "index_reworded_memory": (
        _DELETE_POSTINGS.format(memories="(SELECT OLD.*)"),
        _INSERT_POSTINGS.format(memories="(SELECT NEW.*)"),
        _COUNT_MEMORIES.format(memories="(SELECT OLD.*)", sign="-"),
        _COUNT_MEMORIES.format(memories="(SELECT NEW.*)", sign="+"),
    ),
    "count_added_vectors": (_COUNT_VECTORS.format(vectors="added", sign="+"),),
    "count_removed_vectors": (_COUNT_VECTORS.format(vectors="removed", sign="-"),),
}
TRIGGERS = {
    "memories": (
        "index_added_memories AFTER INSERT ON memories REFERENCING NEW TABLE AS added FOR EACH STATEMENT",
        "index_removed_memories AFTER DELETE ON memories REFERENCING OLD TABLE AS removed FOR EACH STATEMENT",
        "index_reworded_memory AFTER UPDATE OF content, author ON memories FOR EACH ROW"
        " WHEN (OLD.tsv IS DISTINCT FROM NEW.tsv)",
    ),
    "embeddings": (
        "count_added_vectors AFTER INSERT ON embeddings REFERENCING NEW TABLE AS added FOR EACH STATEMENT",
        "count_removed_vectors AFTER DELETE ON embeddings REFERENCING OLD TABLE AS removed FOR EACH STATEMENT",
    ),
}


def upgrade() -> None:
    op.create_table(
        "postings",
        sa.Column("key", sa.BigInteger(), nullable=False),
        sa.Column("memory_id", sa.BigInteger(), nullable=False),
        sa.Column("frequency", sa.SmallInteger(), nullable=False),
        sa.Column("length", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", "memory_id", name="pk_postings", postgresql_include=["frequency", "length"]),
    )
    op.create_table(
        "common_words",
        sa.Column("key", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("memories", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_common_words_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_common_words")),
    )
    op.create_index("ix_common_words_namespace_id", "common_words", ["namespace_id"], unique=False)
    op.create_table(
        "search_totals",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("namespace_id", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespaces.id"], name=op.f("fk_search_totals_namespace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search_totals")),
    )
    op.create_index("ix_search_totals_namespace_id", "search_totals", ["namespace_id"], unique=False)
    op.create_index("ix_embeddings_namespace_id", "embeddings", ["namespace_id", "model"], unique=False)
    op.create_index("ix_memories_author", "memories", ["namespace_id", "author"], unique=False)
    op.drop_index("ix_memories_tsv", table_name="memories", postgresql_using="gin")
    for name, statements in FUNCTIONS.items():
        op.execute(_function(name, *statements))
    for triggers in TRIGGERS.values():
        for trigger in triggers:
            op.execute(f"CREATE TRIGGER {trigger} EXECUTE FUNCTION {trigger.split()[0]}()")
    # Index the memories and count the vectors that are stored already.
    op.execute(_INSERT_POSTINGS.format(memories="memories"))
    op.execute(_COUNT_MEMORIES.format(memories="memories", sign="+"))
    op.execute(_COUNT_VECTORS.format(vectors="embeddings", sign="+"))


def downgrade() -> None:
    for table, triggers in TRIGGERS.items():
        for trigger in triggers:
            op.execute(f"DROP TRIGGER {trigger.split()[0]} ON {table}")
    for name in FUNCTIONS:
        op.execute(f"DROP FUNCTION {name}()")
    op.create_index("ix_memories_tsv", "memories", ["tsv"], unique=False, postgresql_using="gin")
    op.drop_index("ix_memories_author", table_name="memories")
    op.drop_index("ix_embeddings_namespace_id", table_name="embeddings")
    op.drop_table("search_totals")
    op.drop_table("common_words")
    op.drop_table("postings")
