"""``nexus jobs``: the queue, dead letters, recent runs and paused kinds."""

from __future__ import annotations

import json as encoder
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.options import AnyNamespace, Json, Limit
from nexus_tasks.cli.output import emit, out
from nexus_tasks.errors import InvalidInput
from nexus_tasks.types import JobDetails, JobInfo, iso

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus

app = typer.Typer(help="List jobs and dead letters; retry, drop and resume them.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or its beginning.")]
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
_ID_LENGTH, _SEARCHED_JOBS = 36, 10_000


@app.command("list")
def list_(
    namespace: AnyNamespace = None,
    status: Annotated[JobStatus | None, typer.Option("--status", help="Only jobs of this status.", metavar="S")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List jobs: running, waiting and queued jobs, then dead letters and recent runs, both newest first."""
    found = connect().jobs(namespace=namespace, status=status, limit=limit)
    if json:
        emit({"jobs": found})
    else:
        _print_jobs(found)


@app.command()
def show(job: JobId, json: Json = False) -> None:
    """Show all fields of a job, and the error of a dead letter."""
    client = connect()
    found = client.job(_full_id(client, job))
    if json:
        emit(found)
    else:
        _print_job(found)


@app.command()
def retry(job: JobId, json: Json = False) -> None:
    """Run a dead letter again with its counters at 0, or release a held reflection. Retrying twice queues one job."""
    client = connect()
    job_id = _full_id(client, job, status="dead")
    again = client.retry_job(job_id)
    if json:
        emit({"id": job_id, "job_id": again.id, "created": again.created})
    else:
        print(f"Job {again.id} does the work now. See `nexus jobs show {again.id}`.")


@app.command()
def drop(job: JobId, json: Json = False) -> None:
    """Drop a dead letter, a reflection that is held for review, or a queued job. The work of the job is not done."""
    client = connect()
    dropped = client.drop_job(_full_id(client, job))
    if json:
        emit(dropped)
    else:
        print(f"Job {dropped.id} ({dropped.kind}) is dropped.")


@app.command()
def resume(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Only this kind.", show_default="all")] = None,
    json: Json = False,
) -> None:
    """Let paused job kinds run again, once their cause is corrected (credentials, a model's name)."""
    kinds = connect().resume_jobs(kind)
    if json:
        emit({"resumed": kinds})
    else:
        print(f"Resumed: {', '.join(kinds)}." if kinds else "Nothing was paused.")


@app.command()
def repair(json: Json = False) -> None:
    """Check the counters and indexes of all jobs against the jobs, and mend them. Jobs go on meanwhile."""
    found = connect().repair_jobs()
    if json:
        emit(found)
        return
    rows = [(one.namespace, one.counter, one.old, one.new) for one in found.counters]
    table(("namespace", "counter", "was", "is"), rows, elastic="namespace", empty="No counter was wrong.")
    if found.entries_put_back:
        print(f"Put {words.count(found.entries_put_back, 'entry', 'entries')} of jobs back into an index.")


@app.command()
def quarantine(
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="ID", help="Delete this message; may be repeated.")
    ] = None,
    drop_all: Annotated[bool, typer.Option("--drop-all", help="Delete every message.")] = False,
    json: Json = False,
) -> None:
    """List or delete messages that no worker could read. Their queues went on without them."""
    client = connect()
    if drop or drop_all:
        dropped = client.drop_quarantined(None if drop_all else drop)
        if json:
            emit({"dropped": dropped})
        else:
            print(f"Deleted {words.count(dropped, 'message')}.")
        return
    found = client.quarantined()
    if json:
        emit({"messages": found})
    else:
        rows = [(one.id, one.queue, one.fault, one.at) for one in found]
        table(("message", "queue", "fault", "when"), rows, elastic="fault", empty="No message is in quarantine.")


def _full_id(client: Nexus, job: str, *, status: str | None = None) -> str:
    """The id that begins with ``job``. Lists on a terminal show only the first 8 characters of an id."""
    if len(job) >= _ID_LENGTH or not job:
        return job
    found = {row.id for row in client.jobs(status=status, limit=_SEARCHED_JOBS) if row.id.startswith(job)}
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} jobs begin with {job!r}.", remedy="Give more of the id.")
    return found.pop() if found else job


# --- for people ------------------------------------------------------------------------------------------------------
_SHORT_ID = 8  # characters of a job's id in a list on a terminal
_FIRST = ("id", "namespace", "kind", "scope", "status", "attempts")


def _print_jobs(jobs: Sequence[JobInfo]) -> None:
    length = _SHORT_ID if sys.stdout.isatty() else None
    rows = [
        (
            job.id[:length],
            job.kind,
            f"{job.namespace} · {words.scope(job.scope)}",
            job.status if job.attempts < 2 else f"{job.status}, try {job.attempts}",
            job.finished_at or job.started_at or job.queued_at,
        )
        for job in jobs
    ]
    table(("job", "kind", "on", "status", "when"), rows, elastic="on", empty="There are no jobs.")


def _print_job(job: JobDetails) -> None:
    console = out()
    rest = [name for name in job.to_dict() if name not in (*_FIRST, "traceback")]
    for name in (*_FIRST, *rest):
        value = getattr(job, name)
        if value not in (None, "", (), {}):
            console.print(Text.assemble((name.ljust(13), "dim"), _value(value)), soft_wrap=True)
    if job.traceback:
        console.print(Text.assemble("\n", (job.traceback, "dim")), soft_wrap=True)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return f"{iso(value)} ({words.ago(value)})"
    if isinstance(value, dict | tuple):
        return encoder.dumps(value, ensure_ascii=False)
    return str(value)
