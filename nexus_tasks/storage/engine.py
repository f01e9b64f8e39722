"""Connecting to Postgres: one pool of connections per deployment and process, and transactions as ``with`` blocks.

``translation.py`` translates the database's errors into errors of ``nexus_tasks/errors.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InvalidatePoolError
from sqlalchemy.orm import Session

from nexus_tasks.errors import NamespaceMoving, StorageUnavailable, Transient
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.long_statements import prepare_long_statements
from nexus_tasks.storage.silent_connections import WHO_AM_I, WatchedConnection
from nexus_tasks.storage.sql_texts import TextSession
from nexus_tasks.storage.translation import make_engine, translated

log = logging.getLogger(__name__)

# Between two statements of a transaction a process does nothing slow. Therefore a transaction that is idle this long
# belongs to a frozen process, and Postgres ends the transaction. Another worker takes the job over when the job's lease
# has not been renewed for 10 s (by default). The time here is shorter, so the transaction's locks are free by then.
IDLE_IN_TRANSACTION_MS = 8_000
# A transaction that waits longer than this for a lock fails, and its job is retried. Until the retry, the transaction's
# own locks are free for others.
LOCK_TIMEOUT_MS = 2 * IDLE_IN_TRANSACTION_MS

# While Postgres takes no writes, a process replaces its connections at most once in this many seconds. Otherwise an API
# that serves from a standby would replace them at each request, because each request tries to note the token's use.
CONNECT_ANEW_EVERY = 5.0
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

# For work on whole tables. The user of the database may have timeouts for usual statements and transactions. Postgres
# has the second one since version 17.
_UNSET_TIMEOUTS = (
    "SELECT set_config(name, '0', {}) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
)
NO_TIMEOUTS = text(_UNSET_TIMEOUTS.format("false"))
NO_TIMEOUTS_HERE = text(_UNSET_TIMEOUTS.format("true"))  # until the end of the transaction
TRIES = 5  # attempts at a transaction that Postgres may roll back to end a deadlock with a job

T = TypeVar("T")
Transaction: TypeAlias = Session
Watch: TypeAlias = Callable[[float, Exception | None], None]
LEAVING = "leaving"  # in `Transaction.info`, the namespace that moves to another cell and that can only be read
PLACING = "placing"  # in `Transaction.info`, the function that is called with the name of each namespace that is made


class Database:
    """A pool of connections to one database.

    Args:
        url: the address of the database.
        pool_size: the number of connections that are kept open.
        placing: called with the name of a namespace before it is made. It raises when the namespace lives elsewhere.
        watch: called after each transaction with ``time.monotonic`` of its start, and with the error of Postgres that
            ended it. ``None``: Postgres has answered.

    Raises:
        ConfigurationError: ``url`` is no address of a Postgres database.
    """

    def __init__(
        self,
        url: str,
        pool_size: int = 10,
        *,
        placing: Callable[[str], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.url = url
        self._placing = placing
        self._watch = watch
        self.most_connections = 2 * pool_size  # at a time: those that are kept open, and as many more
        self.engine: Engine = make_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            # The connection that was used last has its tables and plans at hand: a new one needs 10 ms to read them.
            pool_use_lifo=True,
            pool_recycle=1_800,
            connect_args=CONNECT_ARGS,
        )
        event.listen(self.engine, "do_connect", _connect)
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "checkin", _note_use)
        event.listen(self.engine, "checkout", self._leave_older)
        event.listen(self.engine, "checkout", _ping_when_idle)
        prepare_long_statements(self.engine)
        self._row_security = self._warned = False  # whether row-level security was found; whether its lack was logged
        self._connected_anew_at = float("-inf")
        self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run the block in a transaction of the isolation level READ COMMITTED.

        Inside a block of :func:`tenancy.limited_to`, the transaction reads and writes only rows of these namespaces.

        The transaction is committed at the end of the block. It is rolled back after any error.

        Raises:
            StorageUnavailable: the server is down, restarting, silent, read-only, or out of connections or disk. Or
                another transaction kept a lock for longer than ``LOCK_TIMEOUT_MS``.
            StorageMisconfigured: the address, user, password or database is wrong, or a permission is missing.
            Transient: Postgres rolled the transaction back to end a deadlock. Or every connection of this process is in
                use.
            SchemaOutdated: a table or column is missing.
            InvalidInput: a text is too large, or has a NUL character or half a surrogate pair.
        """
        with self._transaction(reading=False) as session:
            yield session

    def commit(self, work: Callable[[Transaction], T], *, tries: int = TRIES) -> T:
        """Run ``work`` in a transaction, and again when another transaction was in the way.

        This is for calls that lock many rows, such as erasures and corrections. They may meet a deadlock with a job,
        and unlike a job they have no queue that tries them again.

        Args:
            work: what to do. It may be called several times, each time in a new transaction.
            tries: the most attempts.

        Raises:
            the errors of :meth:`transaction`.
        """
        for attempt in range(1, tries + 1):
            try:
                with self.transaction() as tx:
                    return work(tx)
            except Transient as error:
                if attempt == tries or isinstance(error, StorageUnavailable):
                    raise
                log.info("The transaction failed and is tried again: %s", error)
        raise AssertionError("unreachable")

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Run the block in a read-only transaction whose statements all see the rows as of one moment.

        Raises:
            the errors of :meth:`transaction`.
        """
        # Postgres accepts this only before the first query of a transaction.
        with self._transaction(reading=True, isolation="ISOLATION LEVEL REPEATABLE READ, READ ONLY") as session:
            yield session

    @contextmanager
    def _transaction(self, *, reading: bool, isolation: str = "") -> Iterator[Transaction]:
        with self._watched(), TextSession(self.engine, expire_on_commit=False) as session, session.begin():
            if self._placing is not None:
                session.info[PLACING] = self._placing
            if isolation:
                session.execute(text(f"SET TRANSACTION {isolation}"))
            names = tenancy.limit()
            if names is not None and self._has_row_security(session):
                tenancy.apply(session, names, reading=reading)
            with self._read_only_left(session):
                yield session

    @contextmanager
    def _read_only_left(self, session: Transaction) -> Iterator[None]:
        """When Postgres refuses a write, have the pool replace its connections, or say that the namespace moves.

        A server that takes no writes is a standby. It may have been the primary before a failover. A proxy in front of
        the servers keeps open connections to it, and leads new connections to the new primary.
        """
        try:
            yield
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == "25006":
                if LEAVING in session.info:
                    reason = f"The namespace {session.info[LEAVING]} is moving to another cell."
                    raise NamespaceMoving(reason) from None
                if time.monotonic() - self._connected_anew_at >= CONNECT_ANEW_EVERY:
                    self._connected_anew_at = time.monotonic()
            raise

    def _leave_older(self, _connection: object, record: Any, _proxy: object) -> None:
        """Replace a connection that was made before Postgres refused a write. The pool calls this before each use."""
        if record.info["connected_at"] < self._connected_anew_at:
            raise DisconnectionError

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Read outside a transaction, which saves two round trips to Postgres. Each statement sees the newest commits.

        Raises:
            the errors of :meth:`transaction`.
        """
        if tenancy.limit() is not None:  # the limit holds for a transaction
            with self._transaction(reading=True) as session:
                yield session
            return
        with self._watched(), TextSession(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Translate the errors of Postgres, and tell :attr:`_watch` how the block has ended.

        It is told nothing of other errors. One of them may be that another database does not answer.
        """
        if self._watch is None:
            with translated():
                yield
            return
        begun = time.monotonic()
        with translated(partial(self._watch, begun)):
            yield
        self._watch(begun, None)

    def _has_row_security(self, session: Transaction) -> bool:
        """Whether row-level security can be used. Without it, the limit is the filters of the statements."""
        if not self._row_security:
            why = tenancy.fault(session)
            self._row_security = not why
            if why and not self._warned:
                self._warned = True
                log.warning("Row-level security is off: %s. See docs/tenants.md.", why)
        return self._row_security

    @contextmanager
    def dedicated_connection(self) -> Iterator[Connection]:
        """Open a separate connection in autocommit mode, without a timeout for locks and statements.

        Behind a connection pooler the usual timeouts stay, because other clients get the session afterwards.
        It is for work on whole tables. After the block the connection is closed and not returned to the pool, so its
        settings and advisory locks end.

        Raises:
            the errors of :meth:`transaction`.
        """
        with translated(), self._reading.connect() as connection:
            connection.detach()
            watched: Any = connection.connection.dbapi_connection
            if watched.session is not None:  # else a connection pooler would give the session to others afterwards
                connection.execute(text("SET lock_timeout = 0"))  # CREATE INDEX CONCURRENTLY waits for every reader
                # An index that is not finished in time is of no use, and writers keep it up.
                connection.execute(NO_TIMEOUTS)
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


# Postgres notices within about 10 s that the link to a process, or its machine, is lost, except while it executes a
# statement. Otherwise it waits for the system, often for 2 hours, and keeps the locks of the session, such as the lock
# of a move, an upgrade or the upkeep.
KEEPALIVES = (
    "SET tcp_keepalives_idle = 5",  # seconds
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 2",
    "SET tcp_user_timeout = 10000",  # ms; no probe is sent while sent bytes are unacknowledged
)
INDEX_READS = 100  # vectors that a search in a vector index reads; a statement may set a lower number
_SETTINGS = (
    # psycopg reads no times and intervals in other styles, which a database, its user or PGDATESTYLE may have.
    "SET datestyle = 'ISO, MDY'",
    "SET intervalstyle = 'postgres'",
    # A transaction that has waited for a row reads what others have changed meanwhile, and Postgres lets it go on. The
    # user of the database may have another default, with which a budget would be checked against rows of before a wait.
    "SET default_transaction_isolation = 'read committed'",
    # Postgres ends the transaction of a frozen worker, so that the next worker gets the locks.
    f"SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS}",
    f"SET lock_timeout = {LOCK_TIMEOUT_MS}",
    *KEEPALIVES,
    "SET enable_memoize = off",  # a search looks up a thousand memories, each once: a cache of them takes longer
    # Else Postgres gives a costly statement up to two processes more, and other tenants wait for the processors. A
    # search that compared 20,000 vectors ended no sooner with them.
    "SET max_parallel_workers_per_gather = 0",
    "SET jit = off",  # here compiling a statement takes longer than running the statement
    # When a filter rejects too many of these vectors, the search goes on until it has read 20,000 vectors.
    f"SET hnsw.ef_search = {INDEX_READS}",
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
    if connection.session is None:
        # A connection pooler may run the next transaction in another session, which does not know what was prepared.
        connection.prepare_threshold = None
    connection.commit()
    record.info["connected_at"] = time.monotonic()
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
