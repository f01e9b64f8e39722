"""How statements travel to Postgres: so that a worker which freezes while it sends one is taken for what it is.

Postgres ends a session that is idle in a transaction (``idle_in_transaction_session_timeout``): idle is one that waits
for the beginning of a command. psycopg sends a statement that is not prepared as one command of several messages:
Parse, Bind, Execute and Sync. libpq sends in pieces of 8 KiB. When a process is frozen between two pieces its Parse may
have been done: to Postgres the session is active, no timeout applies, and its locks stay until somebody wakes it.

A prepared statement travels as two commands, each of which is one long message: the first piece of it begins a command
and no piece ends one, so the session counts as idle until everything has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, event

from nexus_tasks.storage.reals import Reals

PIECE = 8_192  # bytes: libpq sends when its buffer holds as many (pqPutMsgEnd in fe-misc.c)
_OVERHEAD = 32  # bytes of framing for each parameter, generously


def prepare_what_is_long(engine: Engine) -> None:
    """Let no statement of this engine travel in pieces that a frozen process may keep back unnoticed."""
    event.listen(engine, "do_execute", _execute)
    event.listen(engine, "do_executemany", _execute_many)


def _execute(cursor: Any, statement: str, parameters: Any, _context: object) -> bool:
    """SQLAlchemy's hook; ``True``: it is executed."""
    if size_of(statement, parameters) < PIECE:
        return False
    cursor.execute(statement, parameters, prepare=True)
    return True


def _execute_many(cursor: Any, statement: str, many: Sequence[Any], context: Any) -> bool:
    """One by one: psycopg's own way is a pipeline, one command from Postgres' point of view however long it is."""
    rows = 0
    for parameters in many:
        cursor.execute(statement, parameters, prepare=True)
        rows += cursor.rowcount
    context._rowcount = rows  # what SQLAlchemy compares with the rows it meant; the cursor knows the last one's only
    return True


def size_of(statement: str, parameters: Mapping[str, Any] | Sequence[Any] | None) -> int:
    """At least as many bytes as the statement and its parameters take on the wire."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    return 4 * len(statement) + sum(map(_size_of, values))


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return _OVERHEAD + 4 * len(value)  # no character of UTF-8 takes more
    if isinstance(value, bytes | bytearray | memoryview):
        return _OVERHEAD + 2 * len(value)
    if isinstance(value, Reals):
        return _OVERHEAD + value.size
    if isinstance(value, list | tuple):
        return _OVERHEAD + sum(map(_size_of, value))
    if value is None or isinstance(value, int | float):
        return _OVERHEAD
    return _OVERHEAD + 4 * len(str(value))
