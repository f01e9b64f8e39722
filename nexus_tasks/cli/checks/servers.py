"""Check that Postgres and Redis answer, are new enough, and are configured so that no data are lost."""

from __future__ import annotations

from collections.abc import Sequence

from nexus_tasks.cli.checks.check import Check, failed, passed

_OLDEST_POSTGRES, _OLDEST_REDIS = 14, (6, 2)
_CONNECT_SECONDS = 5


def postgres(url: str) -> Sequence[Check]:
    """Check that Postgres answers, is new enough, and has the extension pgvector.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the server does not answer, or the URL is malformed.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_SECONDS})
    with engine.connect() as connection:
        version = str(connection.execute(text("SHOW server_version")).scalar_one())
        query = text("SELECT installed_version, default_version FROM pg_available_extensions WHERE name = 'vector'")
        vector = connection.execute(query).first()
    return [_postgres(version), _pgvector(*vector) if vector else _pgvector(None, None)]


def _postgres(version: str) -> Check:
    if int(version.split(".")[0].split("beta")[0].split("rc")[0]) >= _OLDEST_POSTGRES:
        return passed("postgres", f"PostgreSQL {version}")
    return failed("postgres", f"PostgreSQL {version}", f"Use PostgreSQL {_OLDEST_POSTGRES} or later.")


def _pgvector(installed: str | None, available: str | None) -> Check:
    if installed:
        return passed("pgvector", installed)
    if available:
        return failed("pgvector", f"{available}, not enabled here", "Run `nexus db upgrade`, which enables it.")
    return failed("pgvector", "not installed", "Install pgvector on the database server.")


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
            why = tenancy.fault(tx)
    finally:
        database.dispose()
    if not why:
        return [passed("row security", "on")]
    found = f"off: {why}; only the filters of the statements keep namespaces apart"
    if not needed:
        return [passed("row security", found)]
    return [failed("row security", found, "Make the role as docs/tenants.md says, then run `nexus db upgrade`.")]


def redis(url: str, master_name: str) -> Sequence[Check]:
    """Check that Redis answers, is new enough, never evicts keys, and writes an append-only file.

    Raises:
        redis.RedisError: the server does not answer.
        ValueError: the URL is malformed.
    """
    from nexus_tasks.idempotency.redis_client import client

    with client(url, timeout=_CONNECT_SECONDS, master_name=master_name) as asked:
        # INFO is used, because hosted servers refuse the command CONFIG.
        info = asked.info()
    return [_version(str(info["redis_version"])), _eviction(str(info["maxmemory_policy"])), _file(info["aof_enabled"])]


def _version(version: str) -> Check:
    if tuple(int(part) for part in version.split(".")[:2]) >= _OLDEST_REDIS:
        return passed("redis", f"Redis {version}")
    return failed("redis", f"Redis {version}", "Use Redis 6.2 or later.")


def _eviction(policy: str) -> Check:
    if policy == "noeviction":
        return passed("redis eviction", policy)
    return failed("redis eviction", policy, "Set `maxmemory-policy noeviction`, so that Redis does not drop jobs.")


def _file(enabled: object) -> Check:
    if enabled:
        return passed("redis file", "append-only file on")
    return failed("redis file", "append-only file off", "Set `appendonly yes`, so that a restart keeps the queue.")
