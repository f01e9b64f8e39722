"""The addresses of Postgres, Redis and the broker, and the session buffer for messages while Postgres is away.

The addresses come from the settings or from the embedded servers. The embedded servers are a Postgres and a Redis that
this package starts on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.buffer.places import deployment_name
from nexus_tasks.embedded.urls import amqp_tls, celery_url, client_url
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.settings import Settings

_SCHEMES = tuple(f"{scheme}://" for scheme in ("redis", "rediss", "unix", "redis+socket", "socket", "sentinel"))
_CERTIFICATE_CHECKS = ("none", "optional", "required")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """The addresses of a deployment's servers, each in the form that its client library takes.

    The addresses contain passwords. Therefore the ``repr`` shows none of them.
    """

    database_url: str = field(repr=False)  # for SQLAlchemy with psycopg
    redis_url: str = field(repr=False)  # for redis-py
    broker_url: str = field(repr=False)  # for Celery
    broker_tls: dict[str, Any] | None = None  # Celery's setting broker_use_ssl, for RabbitMQ
    result_url: str = field(repr=False)  # for Celery


def endpoints_of(settings: Settings) -> Endpoints:
    """The addresses of the servers for ``settings``.

    When ``settings`` has no URLs of Postgres and Redis, the embedded servers are used. This function starts an embedded
    server that does not run.

    Raises:
        EmbeddedError: an embedded server could not be started.
        ConfigurationError: the setting of Redis is no address of a Redis.
    """
    if settings.database_url is None or settings.redis_url is None:
        from nexus_tasks.embedded import ensure  # imported late, because only this branch needs it

        _refuse_another_host()
        servers = ensure(settings.home)
        database_url, redis_url = servers.database_url, servers.redis_url
    else:
        database_url = _with_driver(settings.database_url.get_secret_value())
        redis_url = settings.redis_url.get_secret_value()
        if fault := _fault_of_redis(redis_url):
            raise ConfigurationError(
                f"NEXUS_REDIS_URL is no address of a Redis: {fault}.",
                remedy="Set it to an address such as redis://localhost:6379/0.",
            )
    broker = settings.broker_url.get_secret_value() if settings.broker_url else redis_url
    broker, tls = amqp_tls(broker)
    return Endpoints(
        database_url=database_url,
        redis_url=client_url(redis_url),
        broker_url=celery_url(broker),
        broker_tls=tls,
        result_url=celery_url(redis_url),
    )


def _refuse_another_host() -> None:
    """Raise an error when PGHOSTADDR is set: libpq would connect to that host, whatever socket the address names."""
    if os.environ.get("PGHOSTADDR"):
        raise ConfigurationError(
            "PGHOSTADDR leads every connection to another server than the embedded Postgres.",
            remedy="Unset PGHOSTADDR, or set NEXUS_DATABASE_URL and NEXUS_REDIS_URL to your own servers.",
        )


def buffer_of(settings: Settings) -> SessionBuffer:
    """The session buffer of this machine, with the entries of the deployment that ``settings`` describe."""
    return SessionBuffer(
        settings.home / "buffer",
        fsync=settings.buffer_fsync,
        max_bytes=settings.buffer_max_bytes,
        deployment=deployment_name(settings.database_url.get_secret_value() if settings.database_url else None),
    )


def revive(settings: Settings) -> None:
    """Start the embedded servers that have ended. When the settings name other servers, this function does nothing.

    Raises:
        EmbeddedError: an embedded server could not be started.
    """
    if settings.embedded:
        from nexus_tasks.embedded import ensure

        ensure(settings.home)


def _fault_of_redis(url: str) -> str:
    """What is wrong with the address of a Redis, without a part of it: a part may be a password. Empty: nothing is.

    The clients raise errors of many types for such an address, and Celery looks for a module of the scheme's name.
    """
    if not url.startswith(_SCHEMES):
        return f"it begins with none of {', '.join(_SCHEMES)}"
    try:
        nodes = [urlsplit(node) for node in url.split(";")] if url.startswith("sentinel:") else [urlsplit(url)]
        for node in nodes:
            node.port  # noqa: B018 - raises a ValueError
    except ValueError:
        return "its host or port cannot be read"
    options = dict(parse_qsl(nodes[0].query))
    database = options.get("db", options.get("virtual_host", ""))
    if nodes[0].scheme in ("redis", "rediss", "sentinel"):
        database = database or nodes[0].path.strip("/")
    elif not nodes[0].path.strip("/"):
        return "it names no socket"
    if database and not database.isdecimal():
        return "its database is no number"
    if options.get("ssl_cert_reqs", "none").lower().removeprefix("cert_") not in _CERTIFICATE_CHECKS:
        return f"its ssl_cert_reqs is none of {', '.join(_CERTIFICATE_CHECKS)}"
    return ""


def _with_driver(url: str) -> str:
    """``url`` for SQLAlchemy: ``postgres://`` and ``postgresql://`` become ``postgresql+psycopg://``."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in ("postgres", "postgresql") else url
