"""Serve MCP over HTTP. A request needs a valid bearer token, an allowed host and an allowed origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from nexus_tasks import limits
from nexus_tasks.integrations.mcp.server import MemoryServer
from nexus_tasks.integrations.serving.access import check_strength
from nexus_tasks.integrations.serving.connections import BodyLimit
from nexus_tasks.integrations.serving.listening import LOOPBACK, bound, configuration, is_loopback, shown
from nexus_tasks.integrations.serving.problems import problem
from nexus_tasks.integrations.serving.storing import StoresBuffer
from nexus_tasks.integrations.serving.tokens import TokenRequired
from nexus_tasks.integrations.serving.turns import Turns
from nexus_tasks.services.access import TokenChecker

PATH = "/mcp"
SETTING = "NEXUS_MCP_TOKEN"


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
    if token and not is_loopback(host):
        check_strength(token, SETTING)
    names = [f"{shown(host)}:{port}", *allowed]
    if is_loopback(host):
        names += [f"localhost:{port}", f"{LOOPBACK}:{port}", f"[::1]:{port}"]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        stateless_http=True,
        json_response=True,
        transport_security=security,
        max_request_body_size=limits.HTTP_BODY_BYTES,  # the SDK's own limit is 4 MiB
    )
    server.memory.needs_access = True
    return TokenRequired(Turns(BodyLimit(_OnlyCalls(app))), token, checker, server.memory.bound, setting=SETTING)


class _OnlyCalls:
    """ASGI middleware that answers 405 to a GET, which asks for a stream of messages from the server.

    This server sends none, and the protocol allows the answer. Open streams would only hold connections.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 405."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == PATH:
            refusal = problem(405, "This server sends messages only as answers.", headers={"Allow": "POST"})
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)


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
    with bound(host, port) as listener:
        port = listener.getsockname()[1]
        app = application(server, token, host, port, allowed=allowed, checker=checker)
        listening(f"http://{shown(host)}:{port}{PATH}")
        try:
            uvicorn.Server(configuration(StoresBuffer(app, server.memory.nexus))).run(sockets=[listener])
        finally:
            if checker is not None:
                checker.write_refusals()
