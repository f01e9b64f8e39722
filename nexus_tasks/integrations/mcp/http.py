"""Over HTTP: behind a token, and for the hosts and origins that were meant only."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nexus_tasks.errors import ConfigurationError, InvalidInput

LOOPBACK = "127.0.0.1"
PATH = "/mcp"


class TokenRequired:
    """Lets requests through that carry the token, before anything else looks at them."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        if not token:
            raise ConfigurationError(
                "MCP over HTTP needs a token, and none is set.",
                remedy="Set NEXUS_MCP_TOKEN to a long random text, the same for the clients.",
            )
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass the request on."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode("utf-8", "surrogateescape")
            # In constant time: how long a wrong token takes to refuse says nothing about the right one.
            if not hmac.compare_digest(given, self.expected):
                refusal = PlainTextResponse("A valid bearer token is required.", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT`` as a pair; the host is loopback unless it is named.

    Raises:
        InvalidInput: it is none of these.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise InvalidInput(f"{text!r} is no address.", remedy="Give HOST:PORT, or just a port for this machine only.")
    return host.strip("[]") or LOOPBACK, int(port)


def application(server: MCPServer, token: str, host: str, port: int, *, allowed: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application of ``server``. Requests without the token get 401, those for another host 421, and those
    from a page of another origin 403.

    Args:
        allowed: further host names by which clients reach it, with their ports where they are not the default.

    Raises:
        ConfigurationError: the token is empty.
    """
    names = [f"{_shown(host)}:{port}", *allowed]
    if _is_loopback(host):
        names += [f"localhost:{port}", f"{LOOPBACK}:{port}", f"[::1]:{port}"]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, host=host, stateless_http=True, json_response=True, transport_security=security
    )
    return TokenRequired(app, token)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    server: MCPServer,
    token: str,
    host: str,
    port: int,
    *,
    allowed: Sequence[str] = (),
    listening: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve until interrupted. Port 0 is one that is free; ``listening`` is told the URL once it is ours.

    Raises:
        ConfigurationError: the token is empty, or the address cannot be had.
    """
    with _bound(host, port) as ours:
        port = ours.getsockname()[1]
        app = application(server, token, host, port, allowed=allowed)
        listening(f"http://{_shown(host)}:{port}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[ours])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {_shown(host)}:{port}: {error.strerror}.",
            remedy="Give --http another HOST:PORT; port 0 takes one that is free.",
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
