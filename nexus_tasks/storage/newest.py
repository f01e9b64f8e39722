"""Finding the newest rows of an outbox. Reconcile looks at the newest rows first."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction


def newest(table: str, condition: str) -> Callable[[Transaction, int], int]:
    """Make a function that finds the newest rows of a table that meet ``condition``.

    The function gets a transaction and a number of rows. It returns an id. The newest rows, as many as the number says,
    have ids above the returned id. When the table has no more rows than the number, the function returns 0.

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
