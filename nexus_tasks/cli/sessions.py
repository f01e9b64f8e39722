"""``nexus sessions``: the conversations of a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit

app = typer.Typer(help="Read and end conversations.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The session's key.")]


@app.command("list")
def list_(namespace: Namespace, json: Json = False) -> None:
    """List sessions with their figures, newest first."""
    found = connect().sessions(namespace)
    if json:
        emit({"namespace": namespace, "sessions": found})
        return
    from nexus_tasks.cli.show import sessions as show

    show.listed(found)


@app.command()
def show(session: Key, namespace: Namespace, json: Json = False) -> None:
    """Show a session: its figures, its digest and what was said."""
    found = connect().session(namespace, session)
    if json:
        emit({"namespace": namespace} | found)
        return
    from nexus_tasks.cli.show import sessions as show

    show.one(found)


@app.command()
def end(session: Key, namespace: Namespace, json: Json = False) -> None:
    """End a session: what waits for company is derived now, then it is digested."""
    job = connect().end_session(namespace, session)
    if json:
        emit({"namespace": namespace, "session_key": session, "job_id": job.id if job else None})
    elif job:
        print(f"Session {session} has ended; job {job.id} digests it.")
    else:
        print(f"Session {session} has ended; nothing is new since its last digest.")
