"""Two ways to write the address of a Redis on a unix socket.

No single URL serves everybody. redis-py knows only ``unix:///path?db=0``; kombu (broker), Celery's result backend and
Flower know only ``redis+socket:///path?virtual_host=0``. Flower asks database 0 whatever the URL says. Addresses over
TCP (``redis://``, ``rediss://``, ``sentinel://``) are the same for all and pass unchanged.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

_SOCKET_SCHEMES = ("unix", "redis+socket", "socket")


def client_url(url: str) -> str:
    """``url`` as redis-py's ``Redis.from_url`` takes it."""
    return _rewrite(url, "unix", "db")


def celery_url(url: str) -> str:
    """``url`` as Celery's ``broker_url`` and ``result_backend``, and Flower, take it."""
    return _rewrite(url, "redis+socket", "virtual_host")


def _rewrite(url: str, scheme: str, database: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SOCKET_SCHEMES:
        return url
    options = {database if key in ("db", "virtual_host") else key: value for key, value in parse_qsl(parts.query)}
    return f"{scheme}://{parts.netloc}{parts.path}?{urlencode({database: '0', **options})}"
