"""Connecting to Postgres: one pool of connections per deployment and process, and transactions as ``with`` blocks.

This module also translates the database's errors into errors of ``nexus_tasks/errors.py``. The type of the translated
error decides whether a job is retried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DataError, DBAPIError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session

from nexus_tasks.errors import InvalidInput, SchemaOutdated, StorageUnavailable, Transient
from nexus_tasks.storage.long_statements import prepare_long_statements
from nexus_tasks.storage.silent_connections import WHO_AM_I, WatchedConnection

# A retry may succeed after an error whose SQLSTATE begins with one of these codes: 08 (the connection failed), 25006
# (the server is read-only, because it is a standby or a former primary), 40 (Postgres rolled the transaction back
# because of a deadlock or a serialisation failure), 53 (the server lacks a resource, for example disk space), 57 (an
# operator intervened) and 58 (the server's system failed).
_PASSING = ("08", "25006", "40", "53", "57", "58")
_TOO_LARGE = "54"  # a limit of Postgres is exceeded, for example the size of a text in a full-text index
_UNDEFINED_TABLE_OR_COLUMN = ("42P01", "42703")

# Between two statements of a transaction a process does nothing slow. Therefore a transaction that is idle this long
# belongs to a frozen process, and Postgres ends the transaction. Another worker takes the job over when the job's lease
# has not been renewed for 10 s (by default). The time here is shorter, so the transaction's locks are free by then.
IDLE_IN_TRANSACTION_MS = 8_000
# A transaction that waits longer than this for a lock fails, and its job is retried. Until the retry, the transaction's
# own locks are free for others.
LOCK_TIMEOUT_MS = 2 * IDLE_IN_TRANSACTION_MS

PING_AFTER_IDLE = 1.0  # a connection that was not used for this many seconds is pinged before its next use

# With these options, TCP ends a connection about 10 s after its network link went down, even while a statement waits
# for its answer. An option in the URL replaces the option here. `silent_connections.py` ends connections that TCP keeps
# open although Postgres does not answer on them.
CONNECT_ARGS = {
    "application_name": "nexus-tasks",
    "connect_timeout": 5,  # seconds
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,  # ms that sent bytes may stay unacknowledged
}

Transaction: TypeAlias = Session


class Database:
    """A pool of connections to one database."""

    def __init__(self, url: str, pool_size: int = 10) -> None:
        self.url = url
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_recycle=1_800,
            connect_args={name: value for name, value in CONNECT_ARGS.items() if name not in make_url(url).query},
            hide_parameters=True,  # without this, errors would show users' texts in logs and dead letters
        )
        event.listen(self.engine, "do_connect", _connect)
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "checkin", _note_use)
        event.listen(self.engine, "checkout", _ping_when_idle)
        prepare_long_statements(self.engine)
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run the block in a transaction of the isolation level READ COMMITTED.

        The transaction is committed at the end of the block. It is rolled back after any error.

        Raises:
            StorageUnavailable: the server is down, restarting, silent, read-only, or out of connections or disk. Or
                another transaction kept a lock for longer than ``LOCK_TIMEOUT_MS``.
            Transient: Postgres rolled the transaction back to end a deadlock. Or every connection of this process is in
                use.
            SchemaOutdated: a table or column is missing.
            InvalidInput: a text is too large, or has a NUL character or half a surrogate pair.
        """
        with _translated(), Transaction(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Read outside a transaction, which saves two round trips to Postgres. Each statement sees the newest commits.

        Raises:
            the errors of :meth:`transaction`.
        """
        with _translated(), Transaction(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def dedicated_connection(self) -> Iterator[Connection]:
        """Open a separate connection in autocommit mode, without a lock timeout.

        After the block the connection is closed and not returned to the pool, so its settings and advisory locks end.

        Raises:
            the errors of :meth:`transaction`.
        """
        with _translated(), self._reading.connect() as connection:
            connection.detach()
            connection.execute(text("SET lock_timeout = 0"))  # CREATE INDEX CONCURRENTLY waits for every reader
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


_SETTINGS = (
    # Postgres ends the transaction of a frozen worker, so that the next worker gets the locks.
    f"SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS}",
    f"SET lock_timeout = {LOCK_TIMEOUT_MS}",
    "SET jit = off",  # here compiling a statement takes longer than running the statement
    # A search in a vector index reads 100 vectors. When a filter rejects too many of them, the search goes on until it
    # has read 20,000 vectors.
    "SET hnsw.ef_search = 100",
    "SET hnsw.iterative_scan = strict_order",
    "SET hnsw.max_scan_tuples = 20000",
)


def _connect(_dialect: object, _record: object, args: list[Any], options: dict[str, Any]) -> WatchedConnection:
    return WatchedConnection.connect(*args, **options)


def _prepare(connection: Any, record: Any) -> None:
    """Apply the settings with SET statements. Connection poolers refuse settings in the form of connection options."""
    cursor = connection.execute("; ".join([*_SETTINGS, WHO_AM_I]))
    while cursor.nextset():
        pass
    connection.introduce(*cursor.fetchone())
    connection.commit()
    _note_use(connection, record)


def _note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_when_idle(connection: Any, record: Any, _proxy: object) -> None:
    """Ping a connection that was idle for 1 s or more.

    Without the ping, a job would fail on a connection that a restart of the server has closed.
    """
    if time.monotonic() - record.info.get("used_at", 0.0) < PING_AFTER_IDLE:
        return
    try:
        connection.autocommit = True
        connection.execute("")
        connection.autocommit = False
    except psycopg.Error as error:
        raise InvalidatePoolError from error  # the pool reconnects, and drops its other connections


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the database as errors of :mod:`nexus_tasks.errors`."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidInput("A text holds half a surrogate pair, which is no character.") from error
    except PoolExhausted as error:
        raise Transient(
            "Every Postgres connection of this process is in use.",
            remedy="A job tries again by itself. Raise NEXUS_DATABASE_POOL_SIZE when this goes on.",
        ) from error
    except DBAPIError as error:
        raise _translate(error) from error


def _translate(error: DBAPIError) -> Exception:
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _UNDEFINED_TABLE_OR_COLUMN:
        return SchemaOutdated()
    if state.startswith(_TOO_LARGE):
        return InvalidInput(f"A text is larger than Postgres takes: {str(error.orig).strip().splitlines()[0]}.")
    if error.connection_invalidated or isinstance(error, OperationalError) or state.startswith(_PASSING):
        # Keep only the first line, because libpq repeats it for each address and adds hints for the server's operator.
        said = str(error.orig).strip().splitlines()
        kind = Transient if state.startswith("40") else StorageUnavailable  # 40: a running server rolled back
        return kind(f"Postgres: {said[0] if said else 'no answer'}.")
    if isinstance(error, DataError) and "NUL" in str(error.orig):  # psycopg's own check gives no error code
        return InvalidInput("A text holds a NUL character, which Postgres cannot store.")
    return error
