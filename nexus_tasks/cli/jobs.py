"""``nexus jobs``: the queue, dead letters, recent runs, paused kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import AnyNamespace, Json, Limit
from nexus_tasks.cli.output import emit
from nexus_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus

app = typer.Typer(help="See jobs and dead letters; retry, drop, resume.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or how it begins.")]
JobStatus = Literal[
    "waiting",
    "pending",
    "running",
    "dead",
    "completed",
    "skipped",
    "unchanged",
    "empty",
    "gone",
    "already_derived",
    "superseded",
    "needs_review",
]
_ID_LENGTH, _LOOKED_THROUGH = 36, 10_000


@app.command("list")
def list_(
    namespace: AnyNamespace = None,
    status: Annotated[JobStatus | None, typer.Option("--status", help="Only these.", metavar="S")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List jobs: running and queued ones, dead letters, then recent runs, each newest first."""
    found = connect().jobs(namespace=namespace, status=status, limit=limit)
    if json:
        emit({"jobs": found})
        return
    from nexus_tasks.cli.show import jobs as show

    show.listed(found)


@app.command()
def show(job: JobId, json: Json = False) -> None:
    """Show everything known of a job; of a dead letter also why it gave up."""
    client = connect()
    found = client.job(_whole(client, job))
    if json:
        emit(found)
        return
    from nexus_tasks.cli.show import jobs as show

    show.one(found)


@app.command()
def retry(job: JobId, json: Json = False) -> None:
    """Run a dead letter again, its counters at 0. Retrying twice enqueues once."""
    client = connect()
    whole = _whole(client, job, status="dead")
    again = client.retry_job(whole)
    if json:
        emit({"id": whole, "job_id": again.id, "created": again.created})
    else:
        print(f"Job {again.id} does the work now. See `nexus jobs show {again.id}`.")


@app.command()
def drop(job: JobId, json: Json = False) -> None:
    """Give a dead letter up, or take a job out of the queue together with the work it stands for."""
    client = connect()
    dropped = client.drop_job(_whole(client, job))
    if json:
        emit(dropped)
    else:
        print(f"Job {dropped['id']} ({dropped['kind']}) is dropped.")


@app.command()
def resume(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Only this kind.", show_default="all")] = None,
    json: Json = False,
) -> None:
    """Let paused job kinds run again, once the cause is gone (credentials, a model's name)."""
    kinds = connect().resume_jobs(kind)
    if json:
        emit({"resumed": kinds})
    else:
        print(f"Resumed: {', '.join(kinds)}." if kinds else "Nothing was paused.")


def _whole(client: Nexus, job: str, *, status: str | None = None) -> str:
    """The id that begins with ``job``: lists on a terminal show only the beginning."""
    if len(job) >= _ID_LENGTH or not job:
        return job
    found = {row["id"] for row in client.jobs(status=status, limit=_LOOKED_THROUGH) if row["id"].startswith(job)}
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} jobs begin with {job!r}.", remedy="Give more of the id.")
    return found.pop() if found else job
