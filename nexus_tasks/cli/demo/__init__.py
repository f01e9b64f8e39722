"""``nexus demo``: everything embedded, from a file of conversations to what is remembered of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Conversations (JSONL, LoCoMo) instead of the shipped ones."),
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", metavar="NS", help="Where to store them.")] = "demo",
) -> None:
    """Show the whole system at work on this machine: start it, ingest, wait, show what is remembered, stop it.

    Always with the offline model and the embedded servers, in a home of its own, whatever is exported: no network, no
    cost, and your own memory is not touched. Run it again to see that nothing is stored twice.
    """
    from nexus_tasks.cli.demo.run import run

    run(data, namespace)
