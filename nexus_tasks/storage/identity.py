"""The database's identity: workers compare it with the one that Redis has noted beside the claims."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DatabaseIdentity


def of_database(tx: Transaction) -> str:
    """A random id, made when a worker first asks for it. A copy of the database has the same id."""
    found = tx.scalar(select(DatabaseIdentity.id))
    if found is None:
        tx.execute(insert(DatabaseIdentity).values(single=True).on_conflict_do_nothing())
        found = tx.scalar(select(DatabaseIdentity.id))
    return str(found)
