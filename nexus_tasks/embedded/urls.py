"""Convert a Redis URL between the spelling of redis-py and the spelling of Celery.

Unix sockets: redis-py understands only ``unix:///path?db=0``. kombu (the broker), Celery's result backend and Flower
understand only ``redis+socket:///path?virtual_host=0``. Flower always uses database 0, even when the URL names another
database.

TLS (``rediss://``): three clients treat a URL without ``ssl_cert_reqs`` differently. redis-py checks the server's
certificate. kombu does not check the certificate. Celery's result backend raises an error. This module therefore adds
``ssl_cert_reqs=required`` to a URL without this option.

``redis://`` and ``sentinel://`` URLs have the same spelling for all clients.

TLS of RabbitMQ (``amqps://``): kombu passes options such as ``ssl_ca_certs`` on in a spelling that its AMQP client
refuses, and checks the certificate without the host's name. :func:`amqp_tls` makes the setting that checks both.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_TLS_FILES = ("ca_certs", "certfile", "keyfile")
_SOCKET_SCHEMES = ("unix", "redis+socket", "socket")


def client_url(url: str) -> str:
    """Convert ``url`` to the spelling that redis-py's ``Redis.from_url`` understands."""
    return _rewrite_socket(_with_certificate_check(url), "unix", "db")


def celery_url(url: str) -> str:
    """Convert ``url`` to the spelling that Flower and Celery's ``broker_url`` and ``result_backend`` understand."""
    return _rewrite_socket(_with_certificate_check(url), "redis+socket", "virtual_host")


def amqp_tls(url: str) -> tuple[str, dict[str, Any] | None]:
    """Split an ``amqps://`` URL into the URL without its options of TLS, and Celery's setting ``broker_use_ssl``.

    The options are named as for ``rediss://``: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs``
    and ``ssl_check_hostname``. Of a list of addresses, the first one has the options, and its host's name must be in
    the certificate of every node. The setting is ``None`` for a URL of another scheme.
    """
    if not url.startswith("amqps:"):
        return url, None
    nodes = [urlsplit(node) for node in url.split(";")]
    given = dict(parse_qsl(nodes[0].query))
    checks = given.get("ssl_cert_reqs", "required").lower().removeprefix("cert_") != "none"
    tls: dict[str, Any] = {name: given[f"ssl_{name}"] for name in _TLS_FILES if f"ssl_{name}" in given}
    tls["cert_reqs"] = ssl.CERT_REQUIRED if checks else ssl.CERT_NONE
    if checks and given.get("ssl_check_hostname", "true").lower() != "false":
        tls["server_hostname"] = nodes[0].hostname
    return ";".join(urlunsplit(node._replace(query=_without_tls(node.query))) for node in nodes), tls


def _without_tls(query: str) -> str:
    return urlencode([(name, value) for name, value in parse_qsl(query) if not name.startswith("ssl_")])


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
