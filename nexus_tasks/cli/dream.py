"""``nexus dream``: consolidate a namespace, now."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import DEFAULT_TIMEOUT, Json, Timeout, Wait
from nexus_tasks.cli.outcome import tell
from nexus_tasks.cli.output import emit
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
    tell(
        job,
        "manual",
        asked=f"Job {job.id} dreams {'for' if job.created else 'already for'} {namespace}.",
        ended=lambda outcome: (
            f"Dream of {namespace}: {outcome.status},"
            f" {words.count(outcome.details.get('sessions', 0), 'session')} digested."
        ),
        see=f"See what came of it with `nexus memories list --namespace {namespace} --level derived`.",
        timeout=timeout if wait else None,
        json=json,
    )
