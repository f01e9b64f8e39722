"""Inserting many rows with one statement whose text never changes.

SQLAlchemy renders a multi-row VALUES anew for every number of rows, and psycopg parses it again: for twenty rows that
costs more than the insert itself. Here the rows travel as one JSON parameter, which Postgres takes apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

import numpy as np
from sqlalchemy import Table, TextClause, text
from sqlalchemy.dialects import postgresql

from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base

Row = Mapping[str, Any]
NONE: Mapping[str, str] = {}


def insert_rows(
    tx: Transaction,
    model: type[Base],
    rows: Sequence[Row],
    *,
    computed: Mapping[str, str] = NONE,
    returning: str = "",
    on_conflict: str = "",
) -> list[tuple[Any, ...]]:
    """Insert ``rows``, all with the same columns, in their order.

    Args:
        computed: more columns, each an SQL expression over those of the row ``r``.
        returning: columns to return, comma-separated; the order is that of ``rows`` unless a conflict left some out.
        on_conflict: what stands behind ``ON CONFLICT``, for example ``DO NOTHING``.
    """
    if not rows:
        return []
    result = tx.execute(
        _statement(model, tuple(rows[0]), tuple(computed.items()), returning, on_conflict),
        {"rows": json.dumps([dict(row) for row in rows], default=_as_json)},
    )
    return [tuple(row) for row in result] if returning else []


@lru_cache(maxsize=64)
def _statement(
    model: type[Base], columns: tuple[str, ...], computed: tuple[tuple[str, str], ...], returning: str, on_conflict: str
) -> TextClause:
    table = cast(Table, model.__table__)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    typed = ", ".join(f"{name} {table.c[name].type.compile(dialect)}" for name in columns)
    named = ", ".join(columns)
    return text(
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
    if isinstance(value, np.ndarray):
        return f"[{','.join(map(repr, value.tolist()))}]"  # the text form of a pgvector
    raise TypeError(f"{type(value).__name__} has no JSON form here")
