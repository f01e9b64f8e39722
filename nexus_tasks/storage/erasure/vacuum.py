"""Removing the bytes of deleted rows from the disk with VACUUM FULL.

Without VACUUM FULL the bytes stay in the files until Postgres reuses the space.
"""

from __future__ import annotations

from sqlalchemy import text

from nexus_tasks.errors import StorageUnavailable
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.models import Base

LOCK_TIMEOUT_MS = 10_000  # how long rewriting a table waits for its readers


# Tables without users' text. They hold ids, numbers, and names that no erasure removes. All other tables are rewritten,
# even if this erasure deleted none of their rows: their files may still hold the bytes of rows that other code deleted,
# for example saved answers.
WORDLESS = frozenset(
    {
        *("namespaces", "model_calls", "budget_holds", "dreams", "embedding_gaps", "reflections", "message_batches"),
        *("postings", "common_words", "search_totals"),  # search keeps words as hashes
    }
)


def rewrite_tables(database: Database, *, files: bool) -> list[str]:
    """Renew Postgres' statistics of the tables. The old statistics may quote deleted values.

    Args:
        files: also rewrite the tables and their indexes without the deleted rows. While a table is rewritten, it is
            locked against readers and writers, for seconds per gigabyte.

    Returns:
        the tables that were left out, because other transactions locked them for more than 10 s.
    """
    command = "VACUUM (FULL, ANALYZE)" if files else "ANALYZE"
    busy = []
    # ANALYZE of any table replaces values in pg_statistic, and the file of pg_statistic keeps the replaced values. So
    # pg_statistic is rewritten last.
    for table in (*sorted(set(Base.metadata.tables) - WORDLESS), *(["pg_statistic"] if files else [])):
        try:
            with database.dedicated_connection() as connection:
                connection.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
                connection.execute(text(f'{command} "{table}"'))
        except StorageUnavailable:
            busy.append(table)
    return busy
