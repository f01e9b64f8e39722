"""``nexus extract``: topics and facts out of a session, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli import workers
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.output import emit, hint


def extract(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's key.")],
    namespace: Namespace,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Extract topics and facts from what a session has said since the last time."""
    job = connect().extract(namespace, session)
    if not wait:
        if json:
            emit({"job_id": job.id, "status": "pending", "reasons": ["turn"], "details": {}})
        else:
            print(f"Job {job.id} extracts from session {session}.")
        workers.say_when_there_is_none()
        return
    with workers.for_the_wait():
        outcome = job.wait(timeout=timeout)
    if json:
        emit(outcome)
    else:
        made = outcome.details
        print(f"{made.get('topics', 0)} topics written, {made.get('facts', 0)} facts stored ({outcome.status}).")
        hint(f"Read them with `nexus topics list --namespace {namespace}`.")
