"""``nexus mcp``: serve memory as tools to agents that use the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import start_logging
from nexus_tasks.cli.output import hint
from nexus_tasks.errors import ConfigurationError


def mcp(
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve over HTTP; clients send a token. With a port alone, serve this machine only.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NS", help="Serve this namespace only; default: each call names one."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="HOST", help="With --http: another host name of this server; repeat for more."
        ),
    ] = None,
) -> None:
    """Serve memory as tools to an agent that uses the Model Context Protocol, such as remember, recall and forget."""
    start_logging()
    from nexus_tasks.settings import load_settings
    from nexus_tasks.types import check_namespace

    if namespace is not None:
        check_namespace(namespace)
    try:
        from nexus_tasks.integrations.mcp import http as over_http
        from nexus_tasks.integrations.mcp.server import server
        from nexus_tasks.integrations.serving.listening import address
        from nexus_tasks.services.cells.tokens import checker_of
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "uvicorn", "starlette"):
            raise
        raise ConfigurationError(
            "The MCP SDK is not installed.", remedy="Install the extra: `pip install 'nexus-tasks[mcp]'`."
        ) from None
    if http is None:
        server(namespace).run("stdio")
        return
    host, port = address(http)
    token = load_settings().mcp_token
    secret = token.get_secret_value() if token else ""
    memory = server(namespace)
    checker = checker_of(memory.memory.nexus.cells, memory.memory.nexus.deployment)
    over_http.serve(
        memory,
        secret,
        host,
        port,
        allowed=allow_host or (),
        # Without the operator's token, a server that no token can open is a mistake.
        checker=checker if secret or checker.any_valid() else None,
        listening=lambda url: hint(f"Serving {url}; Ctrl-C stops."),
    )
