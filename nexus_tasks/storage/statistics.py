"""Renewing Postgres' statistics after many rows were written. Else plans would depend on when autovacuum comes.

With the statistics of a small table, Postgres chooses plans that take minutes once the table is large.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sqlalchemy import Connection, text

from nexus_tasks.errors import NexusError
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.engine import Database
from nexus_tasks.storage.models import Base

log = logging.getLogger(__name__)

MANY = 10_000  # written rows from which the statistics are renewed
BY_TRIGGERS = ("postings", "search_totals")  # the tables that grow with memories

# Autovacuum comes after a tenth of the rows have changed. This is for databases where it is late or off.
_GROWN = text(
    """
    SELECT c.relname FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid
    WHERE s.schemaname = current_schema() AND s.n_mod_since_analyze >= greatest(:many, 0.2 * c.reltuples)
    ORDER BY c.relname
    """
)


def analyze(database: Database, tables: Collection[str]) -> None:
    """Renew the statistics of tables. A table that another process is analyzing is left out.

    The rows are stored already, so an error is only logged: autovacuum or upkeep comes later.
    """
    try:
        with tenancy.unlimited(), database.dedicated_connection() as connection:
            _analyze(connection, tables)
    except NexusError as error:
        log.warning("The statistics of %s were not renewed: %s", ", ".join(tables), error)


def analyze_grown(connection: Connection) -> list[str]:
    """Renew the statistics of tables of which a fifth, and at least 10,000 rows, have changed. Returns their names."""
    grown = sorted(set(connection.scalars(_GROWN, {"many": MANY})) & set(Base.metadata.tables))
    _analyze(connection, grown)
    return grown


def _analyze(connection: Connection, tables: Collection[str]) -> None:
    for table in tables:
        connection.execute(text(f"ANALYZE (SKIP_LOCKED) {table}"))
