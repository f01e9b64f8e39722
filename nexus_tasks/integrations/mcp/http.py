"""The MCP server over HTTP. A request needs the token, an allowed host and an allowed origin."""

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
    """Passes on requests that carry the token. Answers 401 to other requests before any other code reads them.

    Raises:
        ConfigurationError: the token is empty.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        if not token:
            raise ConfigurationError(
                "MCP over HTTP needs a token, and none is set.",
                remedy="Set NEXUS_MCP_TOKEN to a long random text, and give the same to the clients.",
            )
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode("utf-8", "surrogateescape")
            # compare_digest takes constant time, so that the time of a refusal tells nothing about the token.
            if not hmac.compare_digest(given, self.expected):
                refusal = PlainTextResponse("A valid bearer token is required.", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT`` as a pair; without HOST the host is loopback.

    Raises:
        InvalidInput: ``text`` has none of these forms.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise InvalidInput(f"{text!r} is no address.", remedy="Give HOST:PORT, or just a port for this machine only.")
    return host.strip("[]") or LOOPBACK, int(port)


def application(server: MCPServer, token: str, host: str, port: int, *, allowed: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application of ``server``.

    A request without the token gets 401, a request for another host 421, and one from another origin 403.

    Args:
        server: the MCP server.
        token: the bearer token that requests must carry.
        host: the address that the server listens on.
        port: the port that the server listens on.
        allowed: further host names that clients use, each with its port unless the port is the default.

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
    """Serve until a signal ends it.

    Args:
        server: the MCP server.
        token: the bearer token that requests must carry.
        host: the address to listen on.
        port: the port to listen on; 0 takes a free one.
        allowed: further host names, see :func:`application`.
        listening: called with the URL when the port is bound.

    Raises:
        ConfigurationError: the token is empty, or the address cannot be bound.
    """
    with _bound(host, port) as bound:
        port = bound.getsockname()[1]
        app = application(server, token, host, port, allowed=allowed)
        listening(f"http://{_shown(host)}:{port}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[bound])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {_shown(host)}:{port}: {error.strerror}.",
            remedy="Give --http another HOST:PORT; port 0 takes a free port.",
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
