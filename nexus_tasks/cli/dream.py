"""``nexus dream``: consolidate a namespace, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli import workers
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Timeout, Wait
from nexus_tasks.cli.output import emit, hint
from nexus_tasks.cli.show import words


def dream(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Whose memory: a tenant's name.")],
    wait: Wait = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what it would do and do nothing; the model is asked all the same."),
    ] = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    json: Json = False,
) -> None:
    """Digest every session that has something new, then reflect; joins a dream that is open already."""
    if dry_run:
        plans = connect().dream_plans(namespace)
        if json:
            emit(plans)
            return
        from nexus_tasks.cli.show import plans as show

        show.plans(plans)
        return
    job = connect().dream(namespace)
    if not wait:
        if json:
            emit({"job_id": job.id, "status": "pending", "reasons": ["manual"], "details": {}})
        else:
            print(f"Job {job.id} dreams {'for' if job.created else 'already for'} {namespace}.")
        workers.say_when_there_is_none()
        return
    with workers.for_the_wait():
        outcome = job.wait(timeout=timeout)
    if json:
        emit(outcome)
    else:
        digested = words.count(outcome.details.get("sessions", 0), "session")
        print(f"Dream of {namespace}: {outcome.status}, {digested} digested.")
        hint(f"See what came of it with `nexus memories list --namespace {namespace} --level derived`.")
