"""``nexus jobs``: the queue, dead letters, recent runs and paused kinds."""

from __future__ import annotations

import json as encoder
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.options import AnyNamespace, Json, Offset, PageLimit, moment
from nexus_tasks.cli.output import emit, out, say, warn
from nexus_tasks.errors import InvalidInput
from nexus_tasks.types import JOB_STATUSES, Document, JobDetails, JobInfo, Urgency, Worker, iso

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus
    from nexus_tasks.deployment import Deployment

app = typer.Typer(
    help="List jobs and dead letters; retry, drop, pause and resume them; count those that have finished.",
    no_args_is_help=True,
)

_STATUSES = ", ".join(JOB_STATUSES)


def _status(value: str | None) -> str | None:
    if value is not None and value not in JOB_STATUSES:
        raise typer.BadParameter(f"{value!r} is none of {_STATUSES}.")
    return value


JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or its beginning.")]
OneOrMany = Annotated[
    str | None, typer.Argument(metavar="JOB", help="A job's id, or its beginning.", show_default=False)
]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help=f"Only jobs of this status: {_STATUSES}.", callback=_status),
]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only jobs of this kind.")]
All = Annotated[bool, typer.Option("--all", help="Select all of them, without a filter.")]
Yes = Annotated[bool, typer.Option("--yes", help="On a terminal, do not ask first.")]
_ID_LENGTH = 36


@app.command("list")
def list_(
    namespace: AnyNamespace = None,
    status: Status = None,
    kind: Kind = None,
    limit: PageLimit = 50,
    offset: Offset = 0,
    json: Json = False,
) -> None:
    """List running jobs (the longest first), queued jobs (the oldest first), dead letters and recent runs."""
    found = connect().jobs(namespace=namespace, status=status, kind=kind, limit=limit, offset=offset)
    if json:
        emit({"jobs": found})
    else:
        _print_jobs(found)


@app.command()
def show(job: JobId, json: Json = False) -> None:
    """Show all fields of a job, its worker, and the error of its last failed run."""
    client = connect()
    found = client.job(_full_id(client, job))
    if json:
        emit(found)
    else:
        _print_job(found)


@app.command()
def finished(
    namespace: AnyNamespace = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", metavar="T", parser=moment, help="From this time on (ISO 8601).", show_default="a day ago"
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--until", metavar="T", parser=moment, help="Before this time.", show_default="now"),
    ] = None,
    json: Json = False,
) -> None:
    """Count the jobs that have finished, by kind and by how they ended."""
    found = connect().finished_jobs(namespace=namespace, since=since, until=until)
    if json:
        emit(found)
    else:
        rows = [(kind, status, number) for kind, counts in found.counts.items() for status, number in counts.items()]
        table(("kind", "status", "jobs"), rows, elastic="kind", empty="No job has finished in this time.")


@app.command()
def retry(
    job: OneOrMany = None,
    namespace: AnyNamespace = None,
    kind: Kind = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TYPE", help="Only dead letters with an error of this class.")
    ] = None,
    urgency: Annotated[
        Urgency | None, typer.Option("--urgency", help="live or dream.", show_default="that of the dead letter")
    ] = None,
    all_: All = False,
    json: Json = False,
) -> None:
    """Run one or many dead letters again. Retrying a dead letter twice queues only one job.

    The counters of attempts begin at 0. The job's force flag and reasons stay. With the id of a reflection that is held
    for review, a job applies its plan.
    """
    _check_selection(job, all_, (namespace, kind, error))
    client = connect()
    if job is None:
        many = client.retry_jobs(namespace=namespace, kind=kind, error=error, urgency=urgency)
        _emit_or_print(many, json, f"{words.count(many.retried, 'dead letter')} retried.")
        for job_id, why in many.refused.items():
            warn(f"The dead letter {job_id} stays open: {why}")
        return
    job_id = _full_id(client, job)
    again = client.retry_job(job_id, urgency=urgency)
    if json:
        emit({"id": job_id, "job_id": again.id, "created": again.created})
    else:
        print(f"Job {again.id} does the work now. See `nexus jobs show {again.id}`.")


@app.command()
def drop(
    job: OneOrMany = None,
    namespace: AnyNamespace = None,
    kind: Kind = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="S",
            help="Only jobs of this status: waiting, pending, running or dead.",
            show_default="waiting and pending",
        ),
    ] = None,
    all_: All = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Drop one or many dead letters or queued jobs. Their work is not done, not even after a flush of Redis.

    With the id of a reflection that is held for review, its plan is dropped.
    """
    _check_selection(job, all_, (namespace, kind, status))
    if job is None:
        if not yes and not json and sys.stdin.isatty():
            which = ", ".join(filter(None, (namespace, kind, status))) or "that are not begun"
            typer.confirm(f"Drop all jobs ({which})?", abort=True)
        dropped = connect().drop_jobs(namespace=namespace, kind=kind, status=status)
        _emit_or_print(dropped, json, f"{words.count(dropped.dropped, 'job')} dropped.")
        return
    client = connect()
    one = client.drop_job(_full_id(client, job))
    _emit_or_print(one, json, f"Job {one.id} ({one.kind}) is dropped.")


@app.command()
def pause(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace whose jobs stop.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="A text that `nexus status` shows.")] = "",
    json: Json = False,
) -> None:
    """Let no job of a namespace begin, until `nexus jobs resume --namespace NS`. Jobs that run already go on."""
    paused = connect().pause_namespace(namespace, reason)
    _emit_or_print(paused, json, f"{namespace} is paused. In 10 s at the latest, none of its jobs begins any more.")


@app.command()
def resume(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Only this kind.", show_default="all")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NS", help="End the pause of this namespace instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Let paused job kinds run again after the cause of the pause is corrected, or end the pause of a namespace."""
    if namespace is not None:
        if kind is not None:
            raise typer.BadParameter("give KIND or --namespace")
        was_paused = connect().resume_namespace(namespace)
        if json:
            emit({"namespace": namespace, "was_paused": was_paused})
        else:
            print(f"Resumed: {namespace}." if was_paused else f"{namespace} was not paused.")
        return
    kinds = connect().resume_jobs(kind)
    if json:
        emit({"resumed": kinds})
    else:
        print(f"Resumed: {', '.join(kinds)}." if kinds else "Nothing was paused.")


@app.command()
def repair(json: Json = False) -> None:
    """Correct the counters and indexes in Redis that differ from the jobs' own records."""
    found = connect().repair_jobs()
    if json:
        emit(found)
        return
    for key in found.set_aside:
        say(f"Set aside the key {key}, which had a wrong type. Redis keeps it for 30 days.")
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
    limit: PageLimit = 100,
    offset: Offset = 0,
    json: Json = False,
) -> None:
    """List or delete messages that no worker could read. The queues go on without these messages."""
    client = connect()
    if drop or drop_all:
        dropped = client.drop_quarantined(None if drop_all else drop)
        if json:
            emit({"dropped": dropped})
        else:
            print(f"Deleted {words.count(dropped, 'message')}.")
        return
    found = client.quarantined(limit=limit, offset=offset)
    if json:
        emit({"messages": found})
    else:
        rows = [(one.id, one.queue, one.fault, one.at) for one in found]
        table(("message", "queue", "fault", "when"), rows, elastic="fault", empty="No message is in quarantine.")


def _check_selection(job: str | None, every: bool, filters: Sequence[str | None]) -> None:
    given = (job is not None) + (every or any(one is not None for one in filters))
    if given != 1:
        raise typer.BadParameter("give JOB, or a filter such as --kind, or --all")


def _emit_or_print(found: Document, json: bool, text: str) -> None:
    if json:
        emit(found)
    else:
        print(text)


def _full_id(client: Nexus, job: str) -> str:
    """The id that begins with ``job``. Lists on a terminal show only the first 8 characters of an id."""
    from nexus_tasks.services.cells import gathering
    from nexus_tasks.services.jobs import ids_that_begin_with

    if len(job) >= _ID_LENGTH:
        return job

    def look(deployment: Deployment) -> list[str]:
        return ids_that_begin_with(deployment, job, 2, allowed=client.limit)

    if client.cells is None:
        found = look(client.deployment)
    else:
        answers, _ = gathering.ask(client.cells.deployments, look)
        found = [one for ids in answers.values() for one in ids]
    if len(found) > 1 and job not in found:
        raise InvalidInput(f"Several jobs begin with {job!r}.", remedy="Give more of the id.")
    return found[0] if len(found) == 1 else job


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
        if value not in (None, "", (), {}, False):
            console.print(Text.assemble((name.ljust(13), "dim"), _value(value)), soft_wrap=True)
    if job.traceback:
        console.print(Text.assemble("\n", (job.traceback, "dim")), soft_wrap=True)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return f"{iso(value)} ({words.ago(value)})"
    if isinstance(value, Worker):
        return str(value)
    if isinstance(value, dict | tuple):
        return encoder.dumps(value, ensure_ascii=False)
    return str(value)
