"""Reading the database's identity, a random id.

Redis stores the identity of the database that its claims (the records of jobs) belong to. A worker stops when its
database has another identity.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DatabaseIdentity


def of_database(tx: Transaction) -> str:
    """The database's identity. The first call makes the id. A copy of the database has the same id."""
    found = tx.scalar(select(DatabaseIdentity.id))
    if found is None:
        tx.execute(insert(DatabaseIdentity).values(single=True).on_conflict_do_nothing())
        found = tx.scalar(select(DatabaseIdentity.id))
    return str(found)
