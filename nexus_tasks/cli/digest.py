"""``nexus digest``: a session's digest, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli import workers
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.output import emit, hint


def digest(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's key.")],
    namespace: Namespace,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make it again from scratch.")] = False,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Digest a session now, however little is new."""
    job = connect().digest(namespace, session, rebuild=rebuild)
    if not wait:
        if json:
            reason = "manual_rebuild" if rebuild else "manual_digest"
            emit({"job_id": job.id, "status": "pending", "reasons": [reason], "details": {}})
        else:
            print(f"Job {job.id} digests session {session}.")
        workers.say_when_there_is_none()
        return
    with workers.for_the_wait():
        outcome = job.wait(timeout=timeout)
    if json:
        emit(outcome)
    else:
        print(f"Digest of {session}: {outcome.status}.")
        hint(f"Read it with `nexus sessions show {session} --namespace {namespace}`.")
