"""Preparing long SQL statements, so that Postgres can release the locks of a worker that freezes during a statement.

Postgres ends a session that is idle in a transaction for too long (``idle_in_transaction_session_timeout``). A session
is idle while it waits for a command. psycopg sends an unprepared statement as one command of several messages: Parse,
Bind, Execute and Sync. libpq sends the bytes of a command in pieces of 8 KiB. When a process freezes between two
pieces, Postgres may have run the Parse message already. For Postgres the session is then active, and the timeout does
not apply. The session keeps its locks until the process continues.

A prepared statement is sent as two commands. Each command has one long message. Postgres runs no part of a message
before the whole message has arrived. Until then the session is idle, and the timeout applies.

A statement whose rows are read little by little (``yield_per``) declares a cursor of the server, which psycopg does not
prepare. It is sent as it is, so it should be short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import ServerCursor
from sqlalchemy import Engine, event

from nexus_tasks.storage.reals import Reals

PIECE = 8_192  # bytes; libpq sends its buffer when it contains this many bytes (pqPutMsgEnd in fe-misc.c)
_OVERHEAD = 32  # bytes; libpq adds at most this many bytes to the value of a parameter


def prepare_long_statements(engine: Engine) -> None:
    """Make the engine prepare every statement that may take more than ``PIECE`` bytes."""
    event.listen(engine, "do_execute", _execute)
    event.listen(engine, "do_executemany", _execute_many)


def _execute(cursor: Any, statement: str, parameters: Any, _context: object) -> bool:
    """Execute a long statement as a prepared statement. SQLAlchemy calls this hook (``do_execute``) for each statement.

    ``True`` tells SQLAlchemy that the hook has executed the statement.
    """
    if size_of(statement, parameters) < PIECE or isinstance(cursor, ServerCursor):
        return False
    cursor.execute(statement, parameters, prepare=True)
    return True


def _execute_many(cursor: Any, statement: str, many: Sequence[Any], context: Any) -> bool:
    """Execute a statement once per row, as a prepared statement. SQLAlchemy calls this hook (``do_executemany``).

    psycopg's own ``executemany`` is not used, because it sends all rows in a pipeline. For Postgres a session is active
    during a whole pipeline.
    """
    rows = 0
    for parameters in many:
        cursor.execute(statement, parameters, prepare=True)
        rows += cursor.rowcount
    # SQLAlchemy checks the number of rows of all statements together. The cursor has only the last statement's number.
    context._rowcount = rows
    return True


def size_of(statement: str, parameters: Mapping[str, Any] | Sequence[Any] | None) -> int:
    """The largest number of bytes that psycopg may send for the statement and its parameters."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    return 4 * len(statement) + sum(map(_size_of, values))


def _size_of(value: Any) -> int:
    if value is None or isinstance(value, int | float):  # first, because the ids of a batch are many
        return _OVERHEAD
    if isinstance(value, str):
        return _OVERHEAD + 4 * len(value)  # a character takes at most 4 bytes in UTF-8
    if isinstance(value, bytes | bytearray | memoryview):
        return _OVERHEAD + 2 * len(value)
    if isinstance(value, Reals):
        return _OVERHEAD + value.size
    if isinstance(value, list | tuple):
        return _OVERHEAD + sum(map(_size_of, value))
    return _OVERHEAD + 4 * len(str(value))
