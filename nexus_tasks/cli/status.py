"""``nexus status``: what goes on, and why what waits waits."""

from __future__ import annotations

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import AnyNamespace, Json
from nexus_tasks.cli.output import emit


def status(namespace: AnyNamespace = None, json: Json = False) -> None:
    """Show what is waiting, running and dead, why it waits, and what was spent today (UTC)."""
    found = connect().status(namespace)
    if json:
        emit(found)
        return
    from nexus_tasks.cli.show import status as show

    show.status(found)
