"""The newest rows of an outbox: reconcile looks at these first."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text

from nexus_tasks.storage.engine import Transaction


def newest(table: str, condition: str) -> Callable[[Transaction, int], int]:
    """A function that finds the id behind which the newest rows of a table are that meet ``condition``.

    Example::

        newest("derivations", "state = 'wanted'")(tx, 10_000)  # 0 where fewer than 10,001 derivations are wanted

    ``condition`` has no parameters: with a parameter Postgres may leave out a partial index.

    Args:
        table: has an index on its ids, with ``condition`` when most rows do not meet it.
        condition: SQL.
    """
    query = text(f"SELECT id FROM {table} WHERE {condition} ORDER BY id DESC OFFSET :rows LIMIT 1")

    def find(tx: Transaction, rows: int) -> int:
        return int(tx.scalar(query, {"rows": rows}) or 0)

    return find
