"""Exporting the memory of a namespace as JSON documents. ``reading.py`` imports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import Table, text

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base
from nexus_tasks.storage.models.base import written_columns
from nexus_tasks.storage.transfer.tables import FORMAT, SETTINGS, TABLES, VERSION

AT_ONCE = 50  # rows in memory at a time: a message may have 1,000,000 characters


def lines(tx: Transaction, namespace_id: int) -> Iterator[dict[str, Any]]:
    """The documents of an export: a header with the settings, one document per row, and an end with the number of rows.

    ``tx`` must be a snapshot (:meth:`Database.snapshot`), so that all rows are read as of one moment.
    """
    named = ", ".join(SETTINGS)
    settings = tx.execute(
        text(f"SELECT to_jsonb(s) FROM (SELECT {named} FROM namespaces WHERE id = :n) AS s"), {"n": namespace_id}
    ).scalar_one()
    yield {"format": FORMAT, "version": VERSION, "settings": settings}
    count = 0
    for model in TABLES:
        for row in _rows(tx, model, namespace_id):
            count += 1
            yield {"table": model.__tablename__, **row}
    yield {"end": count}


def _rows(tx: Transaction, model: type[Base], namespace_id: int) -> Iterator[dict[str, Any]]:
    table = cast(Table, model.__table__)
    columns = ", ".join(written_columns(table))
    key = ", ".join(c.name for c in table.primary_key)
    query = text(
        f"SELECT to_jsonb(r) FROM (SELECT {columns} FROM {table.name} WHERE namespace_id = :n ORDER BY {key}) AS r"
    )
    result = tx.execute(query, {"n": namespace_id}, execution_options={"yield_per": AT_ONCE})
    yield from result.scalars()
