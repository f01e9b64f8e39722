"""Two ways to write the address of a Redis.

On a unix socket no single URL serves everybody. redis-py knows only ``unix:///path?db=0``; kombu (broker), Celery's
result backend and Flower know only ``redis+socket:///path?virtual_host=0``. Flower asks database 0 whatever the URL
says. With TLS redis-py checks the server's certificate unless told not to, kombu does not unless told to, and Celery's
result backend insists on being told. ``redis://`` and ``sentinel://`` are the same for all.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SOCKET_SCHEMES = ("unix", "redis+socket", "socket")


def client_url(url: str) -> str:
    """``url`` as redis-py's ``Redis.from_url`` takes it."""
    return _rewrite(_with_check(url), "unix", "db")


def celery_url(url: str) -> str:
    """``url`` as Celery's ``broker_url`` and ``result_backend``, and Flower, take it."""
    return _rewrite(_with_check(url), "redis+socket", "virtual_host")


def _with_check(url: str) -> str:
    """``url`` saying, if it is one with TLS, whether the server's certificate is checked: ``required`` when it did not.

    In the one spelling that all of them understand.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return url
    options = {"ssl_cert_reqs": "required"} | dict(parse_qsl(parts.query))
    options["ssl_cert_reqs"] = options["ssl_cert_reqs"].lower().removeprefix("cert_")
    return urlunsplit(parts._replace(query=urlencode(options)))


def _rewrite(url: str, scheme: str, database: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SOCKET_SCHEMES:
        return url
    options = {database if key in ("db", "virtual_host") else key: value for key, value in parse_qsl(parts.query)}
    return f"{scheme}://{parts.netloc}{parts.path}?{urlencode({database: '0', **options})}"
