"""Removing the bytes of deleted rows from Postgres' files and statistics after an erasure.

Without ``VACUUM FULL``, the bytes of a deleted row stay in the files until Postgres reuses the space.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

from sqlalchemy import Connection, text

from nexus_tasks.errors import StorageUnavailable, Transient
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.models import Base
from nexus_tasks.storage.searching import upkeep

# While VACUUM FULL waits for the transactions that use a table, all later ones wait behind it. So each wait is short,
# and others go on between two waits.
LOCK_TIMEOUT_MS = 100
IN_USE_SECONDS = 10.0  # the longest time of such waits for a table
_PAUSE = 0.5  # seconds between two of them
OLDER_SECONDS = 10.0  # the longest wait for transactions that may still see deleted rows
_LOOK_EVERY = 0.05  # seconds

# These tables contain no text of users. They contain only ids, numbers and names, and an erasure keeps the names. All
# other tables are rewritten, even if this erasure deleted no row of the table. The table's file may still contain rows
# that were deleted earlier. For example, a saved answer is deleted when its job commits.
WORDLESS = frozenset(
    {
        *(
            "database_identity",
            "namespaces",
            "tokens",
            "webhooks",
            "audit_log",
            "model_calls",
            "budget_holds",
            "dreams",
            "embedding_gaps",
            "reflections",
            "message_batches",
            "cells",
            "placements",
            "erased_ids",
        ),
        *("postings", "common_words", "search_totals"),  # these tables contain hashes in place of words
    }
)


def rewrite_tables(database: Database, *, files: bool) -> list[str]:
    """Renew Postgres' statistics of the tables, because the old statistics may contain values of deleted rows.

    Args:
        files: also rewrite the files of the tables and of their indexes without the deleted rows. While the files of a
            table are rewritten, which takes some seconds per gigabyte, no transaction can read or write the table.

    Returns:
        The names of the tables whose files or statistics may still have erased values: those that were left out,
        because other transactions used them for more than 10 s; and all whose files were not rewritten, because an
        older transaction was open, such as a long export. Postgres keeps the rows that such a transaction may see.
    """
    is_seen = files and not _older_have_ended(database)
    with upkeep.without_vector_indexes(database) if files and not is_seen else nullcontext():
        return _rewrite(database, files=files, is_seen=is_seen)


def _rewrite(database: Database, *, files: bool, is_seen: bool) -> list[str]:
    """As :func:`rewrite_tables`, when ``is_seen`` says whether an older transaction may still see deleted rows."""
    busy = []
    # The table pg_statistic contains the statistics of all tables. ANALYZE of any table replaces rows of pg_statistic,
    # and the replaced rows stay in the file of pg_statistic. Therefore pg_statistic is rewritten last.
    for table in (*sorted(set(Base.metadata.tables) - WORDLESS), *(["pg_statistic"] if files else [])):
        try:
            if table == "pg_statistic" and not is_seen:
                is_seen = not _older_have_ended(database)
            _renew(database, table, files=files and not is_seen)
        except Transient:
            busy.append(table)
        else:
            busy += [table] if is_seen else []
    return busy


def _renew(database: Database, table: str, *, files: bool) -> None:
    """Renew the statistics of a table, and with ``files`` its files.

    Raises:
        Transient: other transactions have used the table for too long.
    """
    command = "VACUUM (FULL, ANALYZE)" if files else "ANALYZE"
    deadline = time.monotonic() + IN_USE_SECONDS
    while True:
        try:
            with database.dedicated_connection() as connection:
                connection.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
                connection.execute(text(f'{command} "{table}"'))
                if connection.scalar(text(f'SELECT NOT EXISTS (SELECT FROM "{table}")')):
                    _clear_statistics(connection, table)
            return
        except StorageUnavailable:
            raise
        except Transient:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)  # Postgres does not tell when the others end


# VACUUM keeps a deleted row as long as a transaction is open that began before the deletion was committed. Such a
# transaction has a snapshot, whose oldest transaction the column `backend_xmin` names, or it has written something.
_OLDER = text(
    """
    SELECT pg_snapshot_xmin(pg_current_snapshot()) < CAST(:since AS xid8) OR EXISTS (
        SELECT FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND age(backend_xmin) > age(CAST(CAST(:since AS xid8) AS xid))
    )
    """
)


def _older_have_ended(database: Database) -> bool:
    """Wait until the transactions have ended that began before now. Returns whether they have."""
    deadline = time.monotonic() + OLDER_SECONDS
    try:
        with database.dedicated_connection() as connection:  # a tenant's role does not see the sessions of others
            since = connection.scalar(text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
            while connection.scalar(_OLDER, {"since": since}):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_LOOK_EVERY)  # Postgres does not tell when another transaction ends
            return True
    except Transient:
        return False


# Statistics of an index over expressions have the name of the index.
_CLEAR = text(
    """
    SELECT pg_clear_attribute_stats(s.schemaname::text, s.tablename::text, s.attname::text, s.inherited)
    FROM pg_stats AS s JOIN pg_class AS c ON c.relname = s.tablename
    WHERE c.oid = to_regclass(:table)
          OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = to_regclass(:table))
    """
)


def _clear_statistics(connection: Connection, table: str) -> None:
    """Delete the statistics of a table without rows, which ANALYZE leaves as they are. It needs Postgres 18."""
    if connection.scalar(text("SELECT to_regproc('pg_clear_attribute_stats') IS NOT NULL")):
        connection.execute(_CLEAR, {"table": table})
