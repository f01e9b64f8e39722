"""Preparing long SQL statements, so that a worker that freezes while it sends a statement cannot keep its locks.

Postgres ends a session that is idle in a transaction (``idle_in_transaction_session_timeout``). A session is idle while
it waits for a command. psycopg sends an unprepared statement as one command of several messages: Parse, Bind, Execute
and Sync. libpq sends the bytes in pieces of 8 KiB. When a process freezes between two pieces, Postgres may have run the
Parse already. The session then counts as active and has no timeout. Its locks stay until the process continues.

A prepared statement is sent as two commands. Each command has one long message, and Postgres runs nothing before the
whole message has arrived. Until then the session counts as idle, and the timeout applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, event

from nexus_tasks.storage.reals import Reals

PIECE = 8_192  # bytes; libpq sends its buffer when the buffer holds this many (pqPutMsgEnd in fe-misc.c)
_OVERHEAD = 32  # bytes; an upper bound for the framing of a parameter


def prepare_long_statements(engine: Engine) -> None:
    """Make the engine prepare every statement that may take more than ``PIECE`` bytes."""
    event.listen(engine, "do_execute", _execute)
    event.listen(engine, "do_executemany", _execute_many)


def _execute(cursor: Any, statement: str, parameters: Any, _context: object) -> bool:
    """SQLAlchemy's ``do_execute`` hook. ``True`` means that the statement was executed here."""
    if size_of(statement, parameters) < PIECE:
        return False
    cursor.execute(statement, parameters, prepare=True)
    return True


def _execute_many(cursor: Any, statement: str, many: Sequence[Any], context: Any) -> bool:
    """Execute once per row: psycopg's ``executemany`` uses a pipeline, which Postgres sees as one active command."""
    rows = 0
    for parameters in many:
        cursor.execute(statement, parameters, prepare=True)
        rows += cursor.rowcount
    context._rowcount = rows  # SQLAlchemy checks the total; the cursor has only the count of the last statement
    return True


def size_of(statement: str, parameters: Mapping[str, Any] | Sequence[Any] | None) -> int:
    """An upper bound for the bytes that the statement and its parameters take on the wire."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    return 4 * len(statement) + sum(map(_size_of, values))


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return _OVERHEAD + 4 * len(value)  # a character takes at most 4 bytes in UTF-8
    if isinstance(value, bytes | bytearray | memoryview):
        return _OVERHEAD + 2 * len(value)
    if isinstance(value, Reals):
        return _OVERHEAD + value.size
    if isinstance(value, list | tuple):
        return _OVERHEAD + sum(map(_size_of, value))
    if value is None or isinstance(value, int | float):
        return _OVERHEAD
    return _OVERHEAD + 4 * len(str(value))
