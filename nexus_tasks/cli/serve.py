"""``nexus serve``: serve the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.output import hint
from nexus_tasks.errors import ConfigurationError

_OURS = ("fastapi", "uvicorn", "starlette", "h11", "anyio")


@contextmanager
def http_installed() -> Iterator[None]:
    """Name the extra when an import in the block finds no FastAPI.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OURS:
            raise
        raise ConfigurationError(
            "FastAPI is not installed.", remedy="Install the extra: `pip install 'nexus-tasks[http]'`."
        ) from None


def serve(
    address: Annotated[
        str, typer.Argument(metavar="[HOST:]PORT", help="The address. With a port alone, serve this machine only.")
    ] = "8700",
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, max=64, help="Serve with this many processes.")
    ] = 1,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A name of this server, for pages and health checks without a token; repeat for more.",
        ),
    ] = None,
    openapi: Annotated[bool, typer.Option("--openapi", help="Print the OpenAPI document, and serve nothing.")] = False,
) -> None:
    """Serve memory over HTTP, under /v1. Clients send a token."""
    with http_installed():
        from nexus_tasks.integrations.http.application import api
        from nexus_tasks.integrations.http.openapi import as_text
        from nexus_tasks.integrations.http.serve import serve as run
    if openapi:
        print(as_text(api()))
        return
    nexus = connect()
    run(
        nexus,
        address,
        processes=processes,
        hosts=host or (),
        listening=lambda url: hint(f"Serving {url}; Ctrl-C stops."),
    )
