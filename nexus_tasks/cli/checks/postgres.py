"""Check that Postgres answers, is new enough, takes writes and keeps them, and has the schema of this version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nexus_tasks.cli.checks.check import Check, failed, passed

_OLDEST = 14
_CONNECT_ARGS = {"connect_timeout": 5, "client_encoding": "utf8"}  # seconds; the server may have another encoding
_FULL = 0.9  # share of the connections in use from which on there is a fault
_QUERY = """
    SELECT current_setting('server_version') AS version, current_setting('server_encoding') AS encoding,
           (SELECT installed_version FROM pg_available_extensions WHERE name = 'vector') AS installed,
           (SELECT default_version FROM pg_available_extensions WHERE name = 'vector') AS available,
           pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
           current_setting('max_connections')::int
               - current_setting('superuser_reserved_connections')::int AS connections,
           quote_ident(current_database()) AS database, quote_ident(current_user) AS role
"""
# What must be on, so that a commit outlives a crash of the server, and so that statements may write.
_SETTINGS = """
    SELECT name, setting, source FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'default_transaction_read_only') ORDER BY name
"""

_OWNERSHIP = """
    SELECT quote_ident(current_user) AS role, quote_ident(current_schema()) AS schema,
           (SELECT relowner::regrole::text FROM pg_class WHERE oid = to_regclass('memories')) AS owner
"""


class _Setting(NamedTuple):
    name: str
    setting: str
    source: str  # where the value comes from


def postgres(url: str) -> Sequence[Check]:
    """Check that Postgres answers, is new enough, has the extension pgvector, takes writes and keeps them.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the server does not answer, or the URL is malformed.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.pool import NullPool

    from nexus_tasks.storage.translation import remedy_of

    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECT_ARGS)
    try:
        with engine.connect() as connection:
            found = connection.execute(text(_QUERY)).one()
            settings = [_Setting(*row) for row in connection.execute(text(_SETTINGS))]
    except OperationalError as error:
        if remedy := remedy_of(str(error.orig)):
            return [failed("postgres", str(error.orig).strip().partition("\n")[0], remedy)]
        raise
    return [
        _version(found.version),
        *_encoding(found.encoding),
        _pgvector(found.installed, found.available),
        _writes(found, settings),
        _durability(found, settings),
        _connections(found.used, found.connections),
    ]


def _version(version: str) -> Check:
    if int(version.split(".")[0].split("beta")[0].split("rc")[0]) >= _OLDEST:
        return passed("postgres", f"PostgreSQL {version}")
    return failed("postgres", f"PostgreSQL {version}", f"Use PostgreSQL {_OLDEST} or later.")


def _encoding(encoding: str) -> Sequence[Check]:
    if encoding == "UTF8":
        return []
    remedy = "Export each namespace, make the database anew with ENCODING 'UTF8' TEMPLATE template0, and import them."
    return [failed("postgres encoding", f"{encoding}, which cannot keep every character", remedy)]


def _pgvector(installed: str | None, available: str | None) -> Check:
    if installed:
        return passed("pgvector", installed)
    if available:
        return failed("pgvector", f"{available}, not enabled here", "Run `nexus db upgrade`, which enables it.")
    return failed("pgvector", "not installed", "Install pgvector on the database server.")


def _writes(found: Any, settings: Sequence[_Setting]) -> Check:
    if found.standby:
        # A promotion beside a primary that lives would leave two servers that both take writes.
        remedy = (
            "Name the primary server in NEXUS_DATABASE_URL. Only if the primary is gone for good, promote this one with"
            " `SELECT pg_promote()`."
        )
        return failed("postgres writes", "the server is a standby, which refuses writes", remedy)
    [read_only] = [one for one in settings if one.name == "default_transaction_read_only"]
    if read_only.setting == "on":
        # Otherwise the session that corrects the setting may not write either.
        remedy = f"First run `SET default_transaction_read_only = off`. {_corrected(found, read_only, 'off')}"
        return failed("postgres writes", "default_transaction_read_only is on", remedy)
    return passed("postgres writes", "accepted")


def _durability(found: Any, settings: Sequence[_Setting]) -> Check:
    off = [one for one in settings if one.setting == "off" and one.name != "default_transaction_read_only"]
    if not off:
        return passed("durability", "a commit outlives a crash of Postgres")
    names = " and ".join(one.name for one in off)
    remedy = " ".join(_corrected(found, one, "on") for one in off)
    return failed("durability", f"off: {names}; a crash may lose commits, or the database", remedy)


def _corrected(found: Any, one: _Setting, value: str) -> str:
    """The remedy that gives a setting another value, at the place that its present value comes from."""
    if one.source == "database":
        return f"Run `ALTER DATABASE {found.database} RESET {one.name}`."
    if one.source == "user":
        return f"Run `ALTER ROLE {found.role} RESET {one.name}`."
    if one.source == "database user":
        return f"Run `ALTER ROLE {found.role} IN DATABASE {found.database} RESET {one.name}`."
    if one.source == "client":
        return f"Take {one.name} out of NEXUS_DATABASE_URL and PGOPTIONS."
    return f"Run `ALTER SYSTEM SET {one.name} = {value}` and `SELECT pg_reload_conf()`."


def _connections(used: int, most: int) -> Check:
    found = f"{used} of {most} in use"
    if used < _FULL * most:
        return passed("postgres connections", found)
    remedy = (
        "Raise max_connections, run fewer threads and processes, or put PgBouncer in between (docs/deployments.md)."
    )
    return failed("postgres connections", found, remedy)


def schema(url: str, *, embedded: bool) -> Sequence[Check]:
    """Check that the database has the schema of this version of nexus-tasks.

    Raises:
        StorageUnavailable: the server does not answer.
    """
    from nexus_tasks.storage.schema import versions

    found, needed = versions(url)
    if found == needed:
        return [passed("schema", needed)]
    if found is not None and found > needed:
        return [failed("schema", f"{found}, this version knows {needed}", "Upgrade nexus-tasks.")]
    if embedded:
        return [passed("schema", f"{found or 'empty'}; the next command brings it to {needed}")]
    return [failed("schema", f"{found or 'empty'}, needed is {needed}", "Run `nexus db upgrade`.")]


def rights(url: str) -> Sequence[Check]:
    """Check that the user may read and write the tables. They may belong to another user, as after a restore.

    Raises:
        StorageUnavailable: the server does not answer.
    """
    from sqlalchemy import text

    from nexus_tasks.storage import tenancy
    from nexus_tasks.storage.engine import Database

    database = Database(url, pool_size=1)
    try:
        with tenancy.unlimited(), database.reading() as tx:
            bare = tenancy.without_rights(tx)
            who = tx.execute(text(_OWNERSHIP)).one()
    finally:
        database.dispose()
    if not bare:
        return [passed("rights", "this user may read and write every table")]
    found = f"{who.role} may not read and write {', '.join(bare[:3])}{' …' if bare[3:] else ''}"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {who.schema} TO {who.role}"
    remedy = f"As {who.owner}, run `{grant}`, or name the tables' owner in NEXUS_DATABASE_URL."
    return [failed("rights", found, remedy)]


def room(url: str) -> Sequence[Check]:
    """Check by a trial write that Postgres has disk space. With a full disk it still accepts connections and reads.

    Raises:
        StorageUnavailable: the server takes no writes.
    """
    from nexus_tasks.errors import SchemaOutdated
    from nexus_tasks.storage import namespaces, tenancy
    from nexus_tasks.storage.engine import Database

    database = Database(url, pool_size=1)
    try:
        with tenancy.unlimited(), database.transaction() as tx:
            namespaces.write_and_take_back(tx)
    except SchemaOutdated:  # the embedded database is empty until the next command
        return []
    finally:
        database.dispose()
    return [passed("postgres disk", "a trial write succeeded")]


def row_security(url: str, *, needed: bool) -> Sequence[Check]:
    """Check that row-level security protects namespaces from each other.

    Args:
        url: the address of the database.
        needed: whether the lack is a fault, because clients of this deployment are limited to some namespaces.

    Raises:
        StorageUnavailable: the server does not answer.
    """
    from nexus_tasks.storage import tenancy
    from nexus_tasks.storage.engine import Database

    database = Database(url, pool_size=1)
    try:
        with database.reading() as tx:
            why, bare = tenancy.fault(tx), tenancy.unprotected(tx)
            role_serves = not why or why == tenancy.NO_POLICIES
    finally:
        database.dispose()
    if role_serves and not bare:
        return [passed("row security", "on")]
    if role_serves:
        found = f"off for {', '.join(bare[:3])}{' …' if bare[3:] else ''}"
        return [failed("row security", found, "Run `nexus db upgrade`.")]
    found = f"off: {why}; only the filters of the statements keep namespaces apart"
    if not needed:
        return [passed("row security", found)]
    return [failed("row security", found, "Make the role as docs/tenants.md says, then run `nexus db upgrade`.")]
