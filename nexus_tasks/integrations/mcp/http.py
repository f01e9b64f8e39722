"""Serve MCP over HTTP. A request needs a valid bearer token, an allowed host and an allowed origin."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence

import uvicorn
from anyio import to_thread
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nexus_tasks import limits
from nexus_tasks.errors import ConfigurationError, InvalidInput, NexusError
from nexus_tasks.integrations.mcp.access import Access, access_of, check_strength, current
from nexus_tasks.integrations.mcp.connections import BodyLimit, LimitedConnection
from nexus_tasks.integrations.mcp.server import MemoryServer
from nexus_tasks.services.access import TokenChecker

LOOPBACK = "127.0.0.1"
PATH = "/mcp"


class TokenRequired:
    """ASGI middleware that passes a request with a valid bearer token on to ``app``, and answers 401 to other requests.

    A valid token is the operator's token, or a token of a namespace. While Postgres does not answer, tokens of
    namespaces cannot be checked, and their requests get the answer 503.

    Args:
        app: the application behind this one.
        token: the operator's token, which gives access to all that the server serves. Empty: there is none.
        checker: checks the tokens of namespaces. ``None``: they are refused.
        bound: the only namespace that the server serves.

    Raises:
        ConfigurationError: no token can be valid.
    """

    def __init__(self, app: ASGIApp, token: str, checker: TokenChecker | None = None, bound: str | None = None) -> None:
        if not token and checker is None:
            raise ConfigurationError(
                "MCP over HTTP needs a token, and none is set.",
                remedy="Make a token for a namespace with `nexus tokens create`, or set NEXUS_MCP_TOKEN to a long"
                " random text. Give the token to the clients.",
            )
        self.app = app
        self.expected = f"Bearer {token}".encode() if token else None
        self.checker = checker
        self.bound = bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 503."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            access = await self._access(Headers(scope=scope).get("authorization", ""))
        except NexusError:
            busy = PlainTextResponse("The token cannot be checked now.", 503, {"Retry-After": "5"})
            await busy(scope, receive, send)
            return
        if access is None:
            refusal = PlainTextResponse("A valid bearer token is required.", 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        entered = current.set(access)
        try:
            await self.app(scope, receive, send)
        finally:
            current.reset(entered)

    async def _access(self, header: str) -> Access | None:
        given = header.encode("utf-8", "surrogateescape")
        # The time that compare_digest takes does not depend on the compared texts. So a client cannot guess the token
        # from the time of a refusal.
        if self.expected is not None and hmac.compare_digest(given, self.expected):
            return Access()
        scheme, _, token = header.partition(" ")
        if self.checker is None or scheme != "Bearer" or not token:
            return None
        return await to_thread.run_sync(access_of, self.checker, token, self.bound)


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` or ``PORT`` into a host and a port. The default host is ``127.0.0.1``.

    Raises:
        InvalidInput: ``text`` has none of these forms.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise InvalidInput(f"{text!r} is not an address.", remedy="Give HOST:PORT, or PORT for this machine only.")
    return host.strip("[]") or LOOPBACK, int(port)


def application(
    server: MemoryServer,
    token: str,
    host: str,
    port: int,
    *,
    allowed: Sequence[str] = (),
    checker: TokenChecker | None = None,
) -> ASGIApp:
    """The ASGI application of ``server``.

    A request without a valid token gets the answer 401. A request for a host that is not allowed gets 421. A request
    from an origin that is not allowed gets 403. A request with too long a body gets 413.

    Args:
        server: the MCP server.
        token: the operator's bearer token; empty: there is none.
        host: the address that the server listens on.
        port: the port that the server listens on.
        allowed: further host names that clients use. Each name has the port, unless clients use the default port.
        checker: checks the tokens of namespaces. ``None``: they are refused.

    Raises:
        ConfigurationError: no token can be valid. Or other machines can reach ``host``, and the operator's token has
            fewer than 128 bits of entropy.
    """
    if token and not _is_loopback(host):
        check_strength(token)
    names = [f"{_shown(host)}:{port}", *allowed]
    if _is_loopback(host):
        names += [f"localhost:{port}", f"{LOOPBACK}:{port}", f"[::1]:{port}"]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, host=host, stateless_http=True, json_response=True, transport_security=security
    )
    server.memory.needs_access = True
    return TokenRequired(BodyLimit(app), token, checker, server.memory.bound)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    server: MemoryServer,
    token: str,
    host: str,
    port: int,
    *,
    allowed: Sequence[str] = (),
    checker: TokenChecker | None = None,
    listening: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve requests until the process receives a signal to end.

    Args:
        server: the MCP server.
        token: the operator's bearer token; empty: there is none.
        host: the address to listen on.
        port: the port to listen on. With 0 the system chooses a free port.
        allowed: further host names that clients use, as in :func:`application`.
        checker: checks the tokens of namespaces, as in :func:`application`.
        listening: a function that is called with the server's URL when the port is bound.

    Raises:
        ConfigurationError: as in :func:`application`, or the address cannot be bound.
    """
    with _bound(host, port) as bound:
        port = bound.getsockname()[1]
        app = application(server, token, host, port, allowed=allowed, checker=checker)
        listening(f"http://{_shown(host)}:{port}{PATH}")
        try:
            uvicorn.Server(configuration(app)).run(sockets=[bound])
        finally:
            if checker is not None:
                checker.write_refusals()


def configuration(app: ASGIApp) -> uvicorn.Config:
    """The configuration of the HTTP server, with the limits of ``limits.py``."""
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        h11_max_incomplete_event_size=limits.MCP_HEADER_BYTES,
        log_level="warning",
        access_log=False,
    )


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
