"""``nexus doctor``: check every dependency and setting, and say what to fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.failing import FAILED
from nexus_tasks.cli.layout import paragraph
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit, page


def doctor(
    canary: Annotated[
        bool,
        typer.Option(
            "--canary", help="Send a job that costs nothing through the queue, and wait until a worker has done it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check every dependency and setting. The exit code is 1 when a check fails.

    Like other commands, this one starts the embedded servers when they do not run.
    """
    from nexus_tasks.cli.checks.examine import examine

    document = examine(canary=canary)
    if json:
        emit(document)
    else:
        _print_report(document)
    if not document["ok"]:
        raise typer.Exit(FAILED)


def _print_report(document: Mapping[str, Any]) -> None:
    console = page()
    indent = 6 + max(len(check["name"]) for check in document["checks"]) + 2
    for check in document["checks"]:
        mark = ("ok".ljust(6), "green") if check["ok"] else ("FAIL".ljust(6), "bold red")
        paragraph(console, check["found"], indent=indent, first=Text.assemble(mark, check["name"]))
        if check.get("remedy"):
            paragraph(console, Text(f"→ {check['remedy']}", style="yellow"), indent=indent)
    faults = sum(not check["ok"] for check in document["checks"])
    if faults:
        console.print(f"\n{words.count(faults, 'thing has', 'things have')} to be put right.", style="bold red")
    else:
        console.print("\nEverything is in order.", style="green")
