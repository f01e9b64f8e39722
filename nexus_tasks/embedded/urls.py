"""Convert a Redis URL between the spelling of redis-py and the spelling of Celery.

Unix sockets: redis-py understands only ``unix:///path?db=0``. kombu (the broker), Celery's result backend and Flower
understand only ``redis+socket:///path?virtual_host=0``. Flower always uses database 0, even when the URL names another
database.

TLS (``rediss://``): three clients treat a URL without ``ssl_cert_reqs`` differently. redis-py checks the server's
certificate. kombu does not check the certificate. Celery's result backend raises an error. This module therefore adds
``ssl_cert_reqs=required`` to a URL without this option.

``redis://`` and ``sentinel://`` URLs have the same spelling for all clients.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SOCKET_SCHEMES = ("unix", "redis+socket", "socket")


def client_url(url: str) -> str:
    """Convert ``url`` to the spelling that redis-py's ``Redis.from_url`` understands."""
    return _rewrite_socket(_with_certificate_check(url), "unix", "db")


def celery_url(url: str) -> str:
    """Convert ``url`` to the spelling that Flower and Celery's ``broker_url`` and ``result_backend`` understand."""
    return _rewrite_socket(_with_certificate_check(url), "redis+socket", "virtual_host")


def _with_certificate_check(url: str) -> str:
    """Give a TLS ``url`` the option ``ssl_cert_reqs``, in the spelling that all clients understand.

    A missing option gets the value ``required``. A URL without TLS is returned unchanged.
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
