"""``nexus demo``: show the whole system on one machine, from a file of conversations to memories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE", help="A file of conversations (JSONL, LoCoMo) instead of the shipped one."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NS", help="The namespace to store the conversations in.")
    ] = "demo",
) -> None:
    """Show the whole system at work on this machine: start it, ingest, wait, show the memories, stop it.

    The demo always uses the offline model and embedded servers in a home folder of its own, also when NEXUS_* variables
    name others. The demo needs no network, costs nothing and does not touch your own memory. Run the demo again to see
    that nothing is stored twice.
    """
    from nexus_tasks.cli.demo.run import run

    run(data, namespace)
