"""Copying a namespace from the database of one cell into that of another, with all its rows and their ids.

Unlike an export, the copy leaves out nothing: costs, budgets, tokens, dead letters, runs, saved answers, message
batches and vectors come along. The target's triggers make the search tables. Each table's rows pass through this
process as Postgres writes them (``COPY``), and are never all in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import psycopg
from sqlalchemy import Table, text

from nexus_tasks.errors import NexusError, SchemaOutdated, StorageUnavailable
from nexus_tasks.storage.engine import NO_TIMEOUTS_HERE, Transaction
from nexus_tasks.storage.models import Base, Namespace
from nexus_tasks.storage.models.base import written_columns

# The tables that the target makes itself: triggers on memories and vectors write the first two, and upkeep the third.
REMADE = frozenset({"postings", "search_totals", "common_words"})
TABLES = tuple(table for table in Base.metadata.sorted_tables if "namespace_id" in table.c and table.name not in REMADE)
_OF_THE_CELL = frozenset({"id", "residence", "other_cell", "move_id"})  # columns of the namespace's own row

# Both sides write values as text in the same way, and neither is idle while it waits for the other.
_SAME_TEXTS = (
    "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; SET LOCAL extra_float_digits = 1;"
    " SET LOCAL idle_in_transaction_session_timeout = 0"
)


def copy(
    source: Transaction,
    target: Transaction,
    namespace: str,
    *,
    from_cell: str,
    move: str,
    note: Callable[[int], object] = lambda _rows: None,
) -> Mapping[str, int]:
    """Copy a namespace, and compare the copy with the original. Returns the number of rows of each table.

    Args:
        source: a snapshot of the cell that has the namespace.
        target: a transaction of the other cell. The new namespace is ``arriving``.
        from_cell: the name of the first cell.
        move: the id of the move.
        note: called with the number of rows copied so far.

    Raises:
        NexusError: the target has a row with one of the ids, or the copy differs from the original.
        SchemaOutdated: the two databases have different columns.
        StorageUnavailable: one of the two does not answer.
    """
    for side in (source, target):
        side.execute(NO_TIMEOUTS_HERE)
        side.execute(text(_SAME_TEXTS))
    old, new = _id(source, namespace), _make_namespace(source, target, namespace, from_cell, move)
    rows, done = dict[str, int](), 0
    for table in TABLES:
        _check_columns(source, target, table)
        _copy_table(source, target, table, old, new)
        was, now = (_figures(tx, table, owner) for tx, owner in ((source, old), (target, new)))
        if was != now:
            raise NexusError(
                f"The copy of {table.name} differs from the original ({was[0]:,} rows, and {now[0]:,} copied).",
                remedy="Nothing was copied. Report this, with the versions of both servers.",
            )
        rows[table.name] = was[0]
        done += was[0]
        note(done)
    # With the statistics of a small table, Postgres would choose plans that take minutes until autovacuum comes.
    target.execute(text(f"ANALYZE {', '.join([*(table.name for table in TABLES), *sorted(REMADE)])}"))
    return {name: number for name, number in rows.items() if number}


def _id(tx: Transaction, namespace: str) -> int:
    return int(tx.execute(text("SELECT id FROM namespaces WHERE name = :n"), {"n": namespace}).scalar_one())


def _make_namespace(source: Transaction, target: Transaction, namespace: str, from_cell: str, move: str) -> int:
    """Make the namespace's own row in the target, in place of one from an earlier move."""
    # The memories first: their triggers count them in tables that the namespace's end would delete from as well.
    gone = "(SELECT id FROM namespaces WHERE name = :n AND residence IN ('left', 'arriving'))"
    for table in reversed(TABLES):
        target.execute(text(f"DELETE FROM {table.name} WHERE namespace_id = {gone}"), {"n": namespace})
    target.execute(text(f"DELETE FROM namespaces WHERE id = {gone}"), {"n": namespace})
    if target.scalar(text("SELECT true FROM namespaces WHERE name = :n"), {"n": namespace}):
        raise NexusError(
            f"The target has a namespace {namespace} of its own.",
            remedy="Nothing was copied. Give the move up: move the namespace to the cell in which it lives. Then move"
            " again, and the error says how to save and delete the second one.",
        )
    names = ", ".join(one.name for one in Namespace.__table__.columns if one.name not in _OF_THE_CELL)
    row = source.execute(
        text(f"SELECT to_jsonb(n)::text FROM (SELECT {names} FROM namespaces WHERE name = :n) AS n"), {"n": namespace}
    ).scalar_one()
    return int(
        target.execute(
            text(
                f"INSERT INTO namespaces ({names}, residence, other_cell, move_id)"
                f" SELECT {names}, 'arriving', :from_cell, :move"
                " FROM jsonb_populate_record(NULL::namespaces, CAST(:row AS jsonb)) RETURNING id"
            ),
            {"row": row, "from_cell": from_cell, "move": move},
        ).scalar_one()
    )


def _check_columns(source: Transaction, target: Transaction, table: Table) -> None:
    query = text(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped ORDER BY attname"
    )
    here, there = ([tuple(row) for row in tx.execute(query, {"table": table.name})] for tx in (source, target))
    if here != there:
        raise SchemaOutdated(
            f"The table {table.name} has other columns in the other cell.",
            remedy="Run `nexus db upgrade` with NEXUS_CELL set to each of the two cells, then move again.",
        )


def _copy_table(source: Transaction, target: Transaction, table: Table, old: int, new: int) -> None:
    names = ", ".join(written_columns(table))
    read = f"COPY (SELECT {int(new)}, {names} FROM {table.name} WHERE namespace_id = {int(old)}) TO STDOUT"
    written = f"COPY {table.name} (namespace_id, {names}) FROM STDIN"
    try:
        with _cursor(source) as out, _cursor(target) as into, out.copy(read) as rows, into.copy(written) as copied:
            for block in rows:
                copied.write(block)
    except psycopg.errors.UniqueViolation as error:
        raise NexusError(
            f"The other cell has a row of {table.name} with an id of this namespace ({error.diag.constraint_name}).",
            remedy="Nothing was copied. Databases that were filled before they were cells share ids: use `nexus export`"
            " and `nexus import` for this namespace, which gives its rows new ids.",
        ) from None
    except psycopg.Error as error:
        raise StorageUnavailable(f"Postgres, in the copy of {table.name}: {type(error).__name__}.") from error


def _cursor(tx: Transaction) -> Any:
    return cast(Any, tx.connection().connection).cursor()


def _figures(tx: Transaction, table: Table, owner: int) -> tuple[int, int]:
    """The number of a namespace's rows, and a sum that changes with every value in them."""
    query = text(
        "SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)::numeric), 0)"
        f" FROM (SELECT {', '.join(written_columns(table))} FROM {table.name} WHERE namespace_id = :owner) AS r"
    )
    number, total = tx.execute(query, {"owner": owner}).one()
    return int(number), int(total)
