"""``nexus browse``: look at memories in a web browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.output import hint
from nexus_tasks.cli.serve import http_installed


def browse(
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="The port; 0: a free one.")] = 0,
    write: Annotated[
        bool, typer.Option("--write", help="Also correct, pin, undo, erase, and replay dead letters.")
    ] = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a web browser.")] = True,
) -> None:
    """Look at memories in a web browser, on this machine only.

    The link is valid once. Whoever opens it first sees all namespaces, until the command ends.
    """
    with http_installed():
        from nexus_tasks.integrations.http.serve import browse as run

    def invite(link: str) -> None:
        hint(f"{link}\nThe link is valid once. Ctrl-C ends the page.")
        if show:
            webbrowser.open(link)

    run(connect(), port=port, write=write, listening=invite)
