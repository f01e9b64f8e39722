"""``nexus doctor``: checks every dependency and setting, and says what to fix."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.failing import FAILED
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit


def doctor(
    canary: Annotated[
        bool, typer.Option("--canary", help="Send a job that costs nothing through the queue to a worker and back.")
    ] = False,
    json: Json = False,
) -> None:
    """Check every dependency and setting; exit 1 when something has to be fixed.

    The embedded servers are started when they do not run, as by every command.
    """
    from nexus_tasks.cli.checks.examine import examine

    document = examine(canary=canary)
    if json:
        emit(document)
    else:
        from nexus_tasks.cli.show.checks import report

        report(document)
    if not document["ok"]:
        raise typer.Exit(FAILED)
