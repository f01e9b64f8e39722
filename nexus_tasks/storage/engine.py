"""Connections to Postgres: a pool per deployment and process, a transaction as a ``with`` block."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DataError, DBAPIError, InvalidatePoolError, OperationalError
from sqlalchemy.orm import Session as _Session

from nexus_tasks.errors import InvalidInput, SchemaOutdated, StorageUnavailable, Transient
from nexus_tasks.storage.long_statements import prepare_what_is_long

# Postgres error classes that pass by themselves: connection trouble, rollback (deadlock, serialisation), resources,
# operator intervention, and the system's own errors.
_PASSING = ("08", "40", "53", "57", "58")
_TOO_LARGE = "54"  # a limit of the program, such as what a full-text index takes of one text
_UNDEFINED_TABLE_OR_COLUMN = ("42P01", "42703")

FROZEN_AFTER_MS = 8_000  # no transaction here waits for anything but Postgres; shorter than a lease
LOCKED_FOR_MS = (
    2 * FROZEN_AFTER_MS
)  # whoever waits longer for a lock tries again later: what it holds is free meanwhile

IDLE_AFTER = 1.0  # seconds without use after which a connection is looked at before it is trusted

Transaction: TypeAlias = _Session


class Database:
    """A pool of connections. ``transaction()`` is the only way in; it commits when its block ends well."""

    def __init__(self, url: str, pool_size: int = 10) -> None:
        self.url = url
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_recycle=1_800,
            connect_args={"connect_timeout": 5, "application_name": "nexus-tasks"},
            hide_parameters=True,  # what people said has no place in logs and dead letters
        )
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "checkin", _note_use)
        event.listen(self.engine, "checkout", _ping_when_idle)
        prepare_what_is_long(self.engine)
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One transaction, READ COMMITTED, committed at the end of the block and rolled back on any error.

        Raises:
            StorageUnavailable: the server is away, restarting or out of connections.
            Transient: it chose this transaction in a deadlock.
            SchemaOutdated: a table or column is missing.
            InvalidInput: a text holds what Postgres cannot (a NUL character, half a surrogate pair), or is too large.
        """
        with _translated(), Transaction(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Statements that only read, each seeing the newest commits: without BEGIN and COMMIT, two round trips less.

        Raises:
            as :meth:`transaction`.
        """
        with _translated(), Transaction(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def apart(self) -> Iterator[Connection]:
        """A connection without a transaction around it, closed at the end: what is set or locked on it ends with it.

        Raises:
            as :meth:`transaction`.
        """
        with _translated(), self._reading.connect() as connection:
            connection.detach()
            connection.execute(text("SET lock_timeout = 0"))  # an index made beside readers waits for all of them
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


_SETTINGS = (
    # A worker that freezes in a transaction must not hold its locks against the one that takes over.
    f"SET idle_in_transaction_session_timeout = {FROZEN_AFTER_MS}",
    f"SET lock_timeout = {LOCKED_FOR_MS}",
    "SET jit = off",  # compiling takes longer than any statement here
    # A vector search looks at as many as it is asked for, and walks on past what a filter leaves out.
    "SET hnsw.ef_search = 100",
    "SET hnsw.iterative_scan = strict_order",
    "SET hnsw.max_scan_tuples = 20000",
)


def _prepare(connection: Any, record: Any) -> None:
    """Settings as statements and not as connection options, which poolers in front of Postgres refuse."""
    connection.execute("; ".join(_SETTINGS))
    connection.commit()
    _note_use(connection, record)


def _note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_when_idle(connection: Any, record: Any, _proxy: object) -> None:
    """A restarted server costs one round trip, not one failed job per connection; busy connections prove themselves."""
    if time.monotonic() - record.info.get("used_at", 0.0) < IDLE_AFTER:
        return
    try:
        connection.autocommit = True
        connection.execute("")
        connection.autocommit = False
    except psycopg.Error as error:
        raise InvalidatePoolError from error  # the pool connects again, and trusts none of its other connections


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the database as ours."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidInput("A text holds half a surrogate pair, which is no character.") from error
    except DBAPIError as error:
        raise _translate(error) from error


def _translate(error: DBAPIError) -> Exception:
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _UNDEFINED_TABLE_OR_COLUMN:
        return SchemaOutdated()
    if state.startswith(_TOO_LARGE):
        return InvalidInput(f"A text is larger than Postgres takes: {str(error.orig).strip().splitlines()[0]}.")
    if error.connection_invalidated or isinstance(error, OperationalError) or state.startswith(_PASSING):
        # Only the first line: libpq repeats it for each address and adds hints about the server's own host.
        said = str(error.orig).strip().splitlines()
        kind = Transient if state.startswith("40") else StorageUnavailable  # 40: chosen in a deadlock, all is well
        return kind(f"Postgres: {said[0] if said else 'no answer'}.")
    if isinstance(error, DataError) and "NUL" in str(error.orig):  # the driver's own check: it has no code
        return InvalidInput("A text holds a NUL character, which Postgres cannot store.")
    return error
