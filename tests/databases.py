"""The tests' databases: copies of one migrated database. A test gets an empty one, which may have served earlier tests.

To make and drop a database, or to truncate its tables, makes and removes some 400 files. That took more time than the
median test. To delete the few rows that a test leaves behind takes a tenth of that.
"""

from __future__ import annotations

import atexit
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.storage import schema

TEMPLATE = "nexus_template"
_free: dict[str, list[str]] = defaultdict(list)  # by server: databases that are empty and in no use
_made: dict[str, int] = defaultdict(int)

# All that a test may have changed beside rows: tables, columns, indexes, constraints, settings.
_SHAPE = """
SELECT md5(concat(
  (SELECT string_agg(concat(c.relname, c.relkind, c.relnatts), ',' ORDER BY c.relname) FROM pg_class c
   JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'),
  (SELECT string_agg(conname, ',' ORDER BY conname) FROM pg_constraint),
  (SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_namespace),
  (SELECT string_agg(setconfig::text, ',') FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
   WHERE d.datname = current_database())))
"""
_TABLES = """
SELECT quote_ident(relname), pg_table_size(oid) > 1048576 FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
"""
_SEQUENCES = "SELECT setval(format('%I', sequencename)::regclass, start_value, false) FROM pg_sequences" + (
    " WHERE schemaname = 'public' AND last_value IS NOT NULL"
)


def make_template(servers: ServerAddresses) -> None:
    """Make the migrated database that the others are copies of: a copy is faster than migrating every time."""
    # No test cuts the power, and making and dropping a database takes a fifth of the time without waiting for the disk.
    _wait_for_the_disk(servers, "SET {} = off")
    administer(servers, f"CREATE DATABASE {TEMPLATE}")
    schema.upgrade(url(servers, TEMPLATE))


@contextmanager
def durable(servers: ServerAddresses) -> Iterator[None]:
    """Let Postgres wait for the disk meanwhile, as a deployment's does."""
    _wait_for_the_disk(servers, "RESET {}")
    try:
        yield
    finally:
        _wait_for_the_disk(servers, "SET {} = off")


def _wait_for_the_disk(servers: ServerAddresses, change: str) -> None:
    for setting in ("fsync", "full_page_writes"):
        administer(servers, f"ALTER SYSTEM {change.format(setting)}")
    administer(servers, "SELECT pg_reload_conf()")


def url(servers: ServerAddresses, name: str) -> str:
    """The address of a database."""
    return servers.database_url.replace("/nexus?", f"/{name}?")


def administer(servers: ServerAddresses, statement: str) -> None:
    """Run a statement outside any transaction, on the run's first database."""
    with _administration(servers.database_url).connect() as connection:
        connection.execute(text(statement))


def take(servers: ServerAddresses) -> str:
    """The name of an empty database, for one test alone. The caller gives it back."""
    free = _free[servers.database_url]
    if free:
        return free.pop()
    _made[servers.database_url] += 1
    name = f"test_{os.getpid()}_{_made[servers.database_url]}"  # several processes may share the servers
    administer(servers, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    return name


def give_back(servers: ServerAddresses, name: str) -> None:
    """End every connection to a database, and empty it for the next test. A database of another shape is dropped."""
    administer(servers, f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        with _connect(url(servers, name)) as connection, connection.begin():
            as_made = connection.scalar(text(_SHAPE)) == _shape_of_template(servers)
            if as_made:
                _empty(connection)
    except DBAPIError:  # for example a transaction that a test prepared still locks a table
        as_made = False
    if as_made:
        _free[servers.database_url].append(name)
    else:
        administer(servers, f"DROP DATABASE {name} WITH (FORCE)")


def _empty(connection: Connection) -> None:
    large = {str(name): bool(is_large) for name, is_large in connection.execute(text(_TABLES))}
    some = " UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in large)
    # Without foreign keys' triggers the order of the tables does not matter.
    connection.execute(text("SET LOCAL session_replication_role = replica; SET LOCAL lock_timeout = '10s'"))
    used = list(connection.scalars(text(some)))
    if any(large[table] for table in used):
        connection.execute(text(f"TRUNCATE {', '.join(used)} CASCADE"))
    else:
        for table in used:
            connection.execute(text(f"DELETE FROM {table}"))
    connection.execute(text(_SEQUENCES))


def _connect(address: str) -> Connection:
    return create_engine(address, poolclass=NullPool).connect()


@lru_cache
def _shape_of_template(servers: ServerAddresses) -> str:
    with _connect(url(servers, TEMPLATE)) as connection:
        return str(connection.scalar(text(_SHAPE)))


@lru_cache
def _administration(address: str) -> Engine:
    """One connection for the whole run: every test takes and gives back a database."""
    made = create_engine(address, isolation_level="AUTOCOMMIT", pool_size=1, pool_pre_ping=True)
    atexit.register(made.dispose)
    return made
