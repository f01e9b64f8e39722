"""Change large tables while others read and write them: in many short transactions, which hold no strong lock.

A migration that uses these functions commits several times. When it fails halfway, the next upgrade runs it again from
its first step. So each step must also work when it was done before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

MEMORIES_AT_ONCE = 5_000  # rows of a transaction, which then holds their locks for about 0.1 s
PAGES_AT_ONCE = 500  # of 8 kB: about 60,000 postings


def commit() -> None:
    """End the transaction, with its locks. The next statement begins another one."""
    with op.get_context().autocommit_block():
        pass


def outside_transactions(*statements: str) -> None:
    """Run statements that no transaction may hold, such as ``CREATE INDEX CONCURRENTLY``.

    Such a statement waits until all older transactions have ended. Readers and writers go on meanwhile.
    """
    with op.get_context().autocommit_block():
        before = op.get_bind().scalar(sa.text("SELECT current_setting('lock_timeout')"))
        op.execute("SET lock_timeout = 0")
        for statement in statements:
            op.execute(statement)
        op.execute(f"SET lock_timeout = '{before}'")


def create_index(name: str, definition: str) -> None:
    """Create an index beside readers and writers. ``definition`` is what follows ON: the table and its columns."""
    outside_transactions(
        f"DROP INDEX CONCURRENTLY IF EXISTS {name}",  # an index that was not finished is of no use
        f"CREATE INDEX CONCURRENTLY {name} ON {definition}",
    )


def for_all_memories(*statements: str) -> None:
    """Run statements for one range of ids after the other, ``id > :after AND id <= :last``, and commit each range.

    Memories that come meanwhile are left out, as those that a worker of the release before writes afterwards.
    """
    commit()
    after, end = 0, op.get_bind().scalar(sa.text("SELECT max(id) FROM memories")) or 0
    following = sa.text(
        "SELECT max(id) FROM"
        " (SELECT id FROM memories WHERE id > :after AND id <= :end ORDER BY id LIMIT :most) AS following"
    )
    while last := op.get_bind().scalar(following, {"after": after, "end": end, "most": MEMORIES_AT_ONCE}):
        for statement in statements:
            op.get_bind().execute(sa.text(statement), {"after": after, "last": last})
        commit()
        after = last


def for_all_pages(table: str, statement: str) -> None:
    """Run a statement for one range of a table's pages after the other, and commit each range.

    The statement takes rows with ``ctid >= CAST(:first AS tid) AND ctid < CAST(:end AS tid)``. Rows that are written
    meanwhile may be in a range that was done, or in none.
    """
    commit()
    pages = op.get_bind().scalar(
        sa.text("SELECT pg_relation_size(CAST(:name AS regclass)) / current_setting('block_size')::int"),
        {"name": table},
    )
    for first in range(0, int(pages or 0), PAGES_AT_ONCE):
        bounds = {"first": f"({first},0)", "end": f"({first + PAGES_AT_ONCE},0)"}
        op.get_bind().execute(sa.text(statement), bounds)
        commit()
