"""Postgres and Redis: they answer, are new enough, and are set so that nothing gets lost."""

from __future__ import annotations

from collections.abc import Sequence

from nexus_tasks.cli.checks.check import Check, well, wrong

_OLDEST_POSTGRES, _OLDEST_REDIS = 14, (6, 2)
_CONNECT_SECONDS = 5


def postgres(url: str) -> Sequence[Check]:
    """The server answers, and has pgvector.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: it does not answer, or the URL is not one.
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
        return well("postgres", f"PostgreSQL {version}")
    return wrong("postgres", f"PostgreSQL {version}", f"Use PostgreSQL {_OLDEST_POSTGRES} or later.")


def _pgvector(installed: str | None, available: str | None) -> Check:
    if installed:
        return well("pgvector", installed)
    if available:
        return wrong("pgvector", f"{available}, not enabled here", "Run `nexus db upgrade`, which enables it.")
    return wrong("pgvector", "not installed", "Install pgvector on the database server.")


def schema(url: str, *, embedded: bool) -> Sequence[Check]:
    """The tables are those of this version.

    Raises:
        StorageUnavailable: the server does not answer.
    """
    from nexus_tasks.storage.schema import versions

    found, needed = versions(url)
    if found == needed:
        return [well("schema", needed)]
    if found is not None and found > needed:
        return [wrong("schema", f"{found}, this version knows {needed}", "Upgrade nexus-tasks.")]
    if embedded:
        return [well("schema", f"{found or 'empty'}; the next command brings it to {needed}")]
    return [wrong("schema", f"{found or 'empty'}, needed is {needed}", "Run `nexus db upgrade`.")]


def redis(url: str) -> Sequence[Check]:
    """The server answers, is new enough, never evicts, and writes an append-only file.

    Raises:
        redis.RedisError: it does not answer.
        ValueError: the URL is not one.
    """
    from nexus_tasks.idempotency.redis_client import client

    with client(url, timeout=_CONNECT_SECONDS) as asked:
        # Not CONFIG, which hosted servers refuse.
        info = asked.info()
    return [_version(str(info["redis_version"])), _eviction(str(info["maxmemory_policy"])), _file(info["aof_enabled"])]


def _version(version: str) -> Check:
    if tuple(int(part) for part in version.split(".")[:2]) >= _OLDEST_REDIS:
        return well("redis", f"Redis {version}")
    return wrong("redis", f"Redis {version}", "Use Redis 6.2 or later.")


def _eviction(policy: str) -> Check:
    if policy == "noeviction":
        return well("redis eviction", policy)
    return wrong("redis eviction", policy, "Set `maxmemory-policy noeviction`: an evicted claim is a lost wake-up.")


def _file(enabled: object) -> Check:
    if enabled:
        return well("redis file", "append-only file on")
    return wrong("redis file", "append-only file off", "Set `appendonly yes`, so that a restart keeps the queue.")
