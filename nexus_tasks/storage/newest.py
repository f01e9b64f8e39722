"""Finding the newest rows of an outbox (a table whose rows ask for jobs).

Reconcile (a loop of the workers) queues the jobs that these rows ask for and that have no claim (record of a job) in
Redis. Reconcile reads the newest rows first.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction


def newest(table: str, condition: str) -> Callable[[Transaction, int], int]:
    """Make a function that finds where the newest rows of a table begin. Only rows that meet ``condition`` count.

    The made function gets a transaction and a number *n*. It returns an id, and the newest *n* rows are the rows with
    higher ids. When the table has at most *n* rows, the function returns 0.

    Example::

        newest("derivations", "state = 'wanted'")(tx, 10_000)  # 0 when at most 10,000 derivations are wanted

    Args:
        table: the table's name. The table has an index on its ids. When few rows meet ``condition``, the index must be
            a partial index with this condition.
        condition: an SQL condition without parameters. With a parameter Postgres may not use a partial index.
    """
    query = text(f"SELECT id FROM {table} WHERE {condition} ORDER BY id DESC OFFSET :rows LIMIT 1")

    def find(tx: Transaction, rows: int) -> int:
        return int(tx.scalar(query, {"rows": rows}) or 0)

    return find
