"""Bulk insert: one SQL statement that inserts any number of rows.

One JSON parameter contains all rows, and Postgres splits the parameter into rows. So the statement's text is the same
for every number of rows. SQLAlchemy's own bulk insert renders another text for every number of rows, and psycopg parses
each new text. For 20 rows, rendering and parsing take longer than the insert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Table, TextClause, text
from sqlalchemy.dialects import postgresql

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base

Row = Mapping[str, Any]
NO_COLUMNS: Mapping[str, str] = {}


def insert_rows(
    tx: Transaction,
    model: type[Base],
    rows: Sequence[Row],
    *,
    computed: Mapping[str, str] = NO_COLUMNS,
    returning: str = "",
    on_conflict: str = "",
) -> list[tuple[Any, ...]]:
    """Insert ``rows`` in the given order.

    Args:
        rows: the rows, each as column → value. All rows have the same columns.
        computed: further columns, as column → SQL expression. An expression may use the row's columns, as ``r.column``.
        returning: the names of the columns to return, separated by commas.
        on_conflict: the SQL after ``ON CONFLICT``, for example ``DO NOTHING``.

    Returns:
        The ``returning`` columns of the inserted rows, in the order of ``rows``. The result leaves out rows that were
        not inserted because of a conflict.
    """
    if not rows:
        return []
    statement = _statement(model, tuple(rows[0]), tuple(computed.items()), returning, on_conflict)
    result = tx.execute(statement, {"rows": as_json(rows)})
    return [tuple(row) for row in result] if returning else []


def as_json(rows: Sequence[Row]) -> str:
    """The parameter ``rows`` of an :func:`insert_statement`."""
    return json.dumps([dict(row) for row in rows], default=_as_json)


@lru_cache(maxsize=64)
def _statement(
    model: type[Base], columns: tuple[str, ...], computed: tuple[tuple[str, str], ...], returning: str, on_conflict: str
) -> TextClause:
    return text(insert_statement(model, columns, computed, returning, on_conflict))


def insert_statement(
    model: type[Base],
    columns: Sequence[str],
    computed: Sequence[tuple[str, str]] = (),
    returning: str = "",
    on_conflict: str = "",
) -> str:
    """The SQL of :func:`insert_rows`, whose one parameter is ``:rows``; it may also be a part of a larger statement."""
    table = cast(Table, model.__table__)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    typed = ", ".join(f"{name} {table.c[name].type.compile(dialect)}" for name in columns)
    named = ", ".join(columns)
    return (
        f"INSERT INTO {table.name} ({', '.join((*columns, *dict(computed)))})"
        f" SELECT {', '.join((*columns, *dict(computed).values()))}"
        f" FROM ROWS FROM (jsonb_to_recordset(CAST(:rows AS jsonb)) AS ({typed}))"
        f" WITH ORDINALITY AS r ({named}, position) ORDER BY position"
        + (f" ON CONFLICT {on_conflict}" if on_conflict else "")
        + (f" RETURNING {returning}" if returning else "")
    )


def _as_json(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "tolist"):  # an array of numpy
        return f"[{','.join(map(repr, value.tolist()))}]"  # the text form of a pgvector
    raise TypeError(f"{type(value).__name__} has no JSON form here")
