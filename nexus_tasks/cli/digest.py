"""``nexus digest``: a session's digest, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Namespace, Timeout, Wait
from nexus_tasks.cli.outcome import tell


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
    tell(
        job,
        "manual_rebuild" if rebuild else "manual_digest",
        asked=f"Job {job.id} digests session {session}.",
        ended=lambda outcome: f"Digest of {session}: {outcome.status}.",
        see=f"Read it with `nexus sessions show {session} --namespace {namespace}`.",
        timeout=timeout if wait else None,
        json=json,
    )
