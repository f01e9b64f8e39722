"""Convert a Redis URL between the spelling of redis-py and the spelling of Celery.

Unix sockets: redis-py understands only ``unix:///path?db=0``. kombu (the broker), Celery's result backend and Flower
understand only ``redis+socket:///path?virtual_host=0``. Flower always uses database 0, also when the URL names another.

TLS (``rediss://``): without ``ssl_cert_reqs`` in the URL, redis-py checks the server's certificate, kombu does not
check the certificate, and Celery's result backend raises. This module therefore always adds ``ssl_cert_reqs``.

``redis://`` and ``sentinel://`` URLs have one spelling for all clients.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SOCKET_SCHEMES = ("unix", "redis+socket", "socket")


def client_url(url: str) -> str:
    """``url`` as redis-py's ``Redis.from_url`` takes it."""
    return _rewrite_socket(_with_certificate_check(url), "unix", "db")


def celery_url(url: str) -> str:
    """``url`` as Celery's ``broker_url`` and ``result_backend``, and Flower, take it."""
    return _rewrite_socket(_with_certificate_check(url), "redis+socket", "virtual_host")


def _with_certificate_check(url: str) -> str:
    """Give a TLS ``url`` the option ``ssl_cert_reqs`` in the spelling that all clients understand.

    The default is ``required``. Other URLs are returned unchanged.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return url
    options = {"ssl_cert_reqs": "required"} | dict(parse_qsl(parts.query))
    options["ssl_cert_reqs"] = options["ssl_cert_reqs"].lower().removeprefix("cert_")
    return urlunsplit(parts._replace(query=urlencode(options)))


def _rewrite_socket(url: str, scheme: str, database: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SOCKET_SCHEMES:
        return url
    options = {database if key in ("db", "virtual_host") else key: value for key, value in parse_qsl(parts.query)}
    return f"{scheme}://{parts.netloc}{parts.path}?{urlencode({database: '0', **options})}"
