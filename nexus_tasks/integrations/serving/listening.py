"""Parse the address of a server, bind it, and configure uvicorn with the limits of ``limits.py``."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from nexus_tasks import limits
from nexus_tasks.errors import ConfigurationError, InvalidInput
from nexus_tasks.integrations.serving.connections import LimitedConnection
from nexus_tasks.text import shorten

LOOPBACK = "127.0.0.1"
# Open files of a server. Many connections may be accepted in one turn of the loop, before the first one gives way.
_FILES = 4 * limits.HTTP_CONNECTIONS


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` or ``PORT`` into a host and a port. The default host is ``127.0.0.1``.

    Raises:
        InvalidInput: ``text`` has none of these forms.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        shown = repr(shorten(text, 60))
        raise InvalidInput(f"{shown} is not an address.", remedy="Give HOST:PORT, or PORT for this machine only.")
    return host.strip("[]") or LOOPBACK, int(port)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. With the port 0 the system chooses a free port.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Accepted connections inherit it. Without it the body of an answer, which is sent behind the headers, waits
        # 40 ms for the client's acknowledgement of the headers. asyncio sets it only on sockets that name TCP.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {shown(host)}:{port}: {error.strerror}.",
            remedy="Give another HOST:PORT to `nexus serve`, or to `--http` of `nexus mcp`. Port 0 takes a free port.",
        ) from error


def configuration(app: ASGIApp | Callable[[], ASGIApp], **options: Any) -> uvicorn.Config:
    """The configuration of the HTTP server, with the limits of ``limits.py``.

    The address of a client is the one that the system gives. From this machine, uvicorn would otherwise take the
    address in a header ``X-Forwarded-For``, which any client may write. ``peers.py`` would then look for a connection
    that does not exist.
    """
    _allow_files()
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        h11_max_incomplete_event_size=limits.HTTP_HEADER_BYTES,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        **options,
    )


def _allow_files() -> None:
    """Let this process and its children open as many files as the limit of connections needs, if the system allows it.

    Where the limit of open files is lower, as the 256 of macOS, connections are not accepted at all. Then no
    connection gives way to another one, and asyncio logs thousands of errors per second.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def shown(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
