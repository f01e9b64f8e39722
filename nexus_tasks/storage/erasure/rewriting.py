"""Taking erased rows off the disk: Postgres keeps the bytes of a deleted row until something else is written there."""

from __future__ import annotations

from sqlalchemy import text

from nexus_tasks.errors import StorageUnavailable
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.models import Base

PATIENCE_MS = 10_000  # how long a table's rewriting waits for those who read it


# Tables without words of what was said: ids, numbers, and names that stay. All the others are rewritten, also those
# from which nothing was deleted just now: answers that were used up long ago lie there still.
WORDLESS = frozenset(
    {
        *("namespaces", "model_calls", "budget_holds", "dreams", "embedding_gaps", "reflections", "message_batches"),
        *("postings", "common_words", "search_totals"),  # search keeps words as hashes
    }
)


def rewrite(database: Database, *, files: bool) -> list[str]:
    """Renew the tables' statistics, which hold common values of columns; returns the tables that were too busy.

    With ``files`` tables and their indexes are written anew without what was deleted. Each is locked against
    everybody while that lasts: seconds per gigabyte.
    """
    command = "VACUUM (FULL, ANALYZE)" if files else "ANALYZE"
    busy = []
    # The statistics last, with the values that they held before.
    for table in (*sorted(set(Base.metadata.tables) - WORDLESS), *(["pg_statistic"] if files else [])):
        try:
            with database.apart() as connection:
                connection.execute(text(f"SET lock_timeout = {PATIENCE_MS}"))
                connection.execute(text(f'{command} "{table}"'))
        except StorageUnavailable:
            busy.append(table)
    return busy
