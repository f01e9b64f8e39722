"""Where Postgres, Redis and the broker are: as the settings say, or the embedded ones, started on first need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nexus_tasks.embedded.urls import celery_url, client_url
from nexus_tasks.settings import get_settings


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses, each in the spelling of who uses it."""

    database_url: str  # SQLAlchemy with psycopg
    redis_url: str  # redis-py
    broker_url: str  # Celery
    result_url: str  # Celery


@lru_cache(maxsize=1)
def endpoints() -> Endpoints:
    """This process's endpoints; the first call may start the embedded servers.

    Raises:
        EmbeddedError: an embedded server could not be started.
    """
    settings = get_settings()
    if settings.database_url is None or settings.redis_url is None:
        from nexus_tasks.embedded import ensure  # not needed, nor installed, where servers are set

        servers = ensure(settings.home)
        database_url, redis_url = servers.database_url, servers.redis_url
    else:
        database_url = _with_driver(settings.database_url.get_secret_value())
        redis_url = settings.redis_url.get_secret_value()
    broker = settings.broker_url.get_secret_value() if settings.broker_url else redis_url
    return Endpoints(
        database_url=database_url,
        redis_url=client_url(redis_url),
        broker_url=celery_url(broker),
        result_url=celery_url(redis_url),
    )


def revive() -> None:
    """Start embedded servers that have died; does nothing for servers that are set."""
    settings = get_settings()
    if settings.embedded:
        from nexus_tasks.embedded import ensure

        ensure(settings.home)


def _with_driver(url: str) -> str:
    """``postgres://`` and ``postgresql://`` addresses, as platforms hand them out, with the driver named."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in ("postgres", "postgresql") else url
