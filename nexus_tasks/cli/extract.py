"""``nexus extract``: topics and facts out of a session, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.outcome import tell


def extract(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's key.")],
    namespace: Namespace,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Extract topics and facts from what a session has said since the last time."""
    job = connect().extract(namespace, session)
    tell(
        job,
        "turn",
        asked=f"Job {job.id} extracts from session {session}.",
        ended=lambda outcome: (
            f"{outcome.details.get('topics', 0)} topics written, {outcome.details.get('facts', 0)} facts stored"
            f" ({outcome.status})."
        ),
        see=f"Read them with `nexus topics list --namespace {namespace}`.",
        timeout=timeout if wait else None,
        json=json,
    )
