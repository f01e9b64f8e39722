"""``nexus sessions``: the sessions (conversations) of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from nexus_tasks import limits
from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import paragraph, table
from nexus_tasks.cli.options import Json, Namespace, Offset, PageLimit
from nexus_tasks.cli.output import emit, hint, out, say
from nexus_tasks.types import ObservationText, SessionDetails, SessionInfo

app = typer.Typer(help="List, show and end sessions (conversations).", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The session's key.")]


@app.command("list")
def list_(namespace: Namespace, limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List sessions with their figures, newest first."""
    found = connect().sessions(namespace, limit=limit, offset=offset)
    if json:
        emit({"namespace": namespace, "sessions": found})
    else:
        _print_sessions(found)


@app.command()
def show(
    session: Key,
    namespace: Namespace,
    after: Annotated[int, typer.Option("--after", metavar="N", min=0, help="Only messages after number N.")] = 0,
    limit: PageLimit = limits.PAGE_ROWS,
    json: Json = False,
) -> None:
    """Show a session: its figures, its digest and a page of its messages, oldest first."""
    found = connect().session(namespace, session, after=after, limit=limit)
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        _print_session(found)


@app.command()
def end(session: Key, namespace: Namespace, json: Json = False) -> None:
    """End a session: its waiting messages are derived at once, then the session is digested."""
    job = connect().end_session(namespace, session)
    if json:
        emit({"namespace": namespace, "session_key": session, "job_id": job.id if job else None})
    elif job:
        print(f"Session {session} has ended; job {job.id} digests it.")
    else:
        print(f"Session {session} has ended; nothing is new since its last digest.")


@app.command()
def log(
    session: Key,
    namespace: Namespace,
    generation: Annotated[
        int | None,
        typer.Option("--generation", metavar="N", min=0, help="Show the text that generation N of the log replaced."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a session's observation log, and what its condensations have replaced in the last seven days."""
    found = connect().observation_log(namespace, session, generation=generation)
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        _print_log(found)


@app.command("undo-log")
def undo_log(session: Key, namespace: Namespace, json: Json = False) -> None:
    """Undo the last condensation of a session's observation log. Later notes stay."""
    found = connect().undo_condensation(namespace, session)
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        _print_log(found)


@app.command("clear-task")
def clear_task(session: Key, namespace: Namespace, json: Json = False) -> None:
    """Clear the current task and the suggested response of a session's observation log."""
    cleared = connect().clear_task(namespace, session)
    if json:
        emit({"namespace": namespace, "session_key": session, "cleared": cleared})
    else:
        print("Cleared." if cleared else "There was no task and no suggested response.")


# --- output for people -----------------------------------------------------------------------------------------------
def _print_sessions(sessions: Sequence[SessionInfo]) -> None:
    rows = [
        (
            session.session_key,
            session.messages,
            session.underived,
            session.digested_through,
            "open" if session.open else "ended",
            session.created_at,
        )
        for session in sessions
    ]
    titles = ("session", "messages", "underived", "digested to", "state", "since")
    table(titles, rows, elastic="session", empty="There are no sessions yet.")


def _print_log(found: ObservationText) -> None:
    console = out()
    say(found.text or "The log is empty.")
    for name, said, when in (
        ("Current task", found.current_task, found.current_task_at),
        ("Suggested response", found.suggested_response, found.suggested_response_at),
    ):
        if said:
            age = f" (as of {when:%Y-%m-%d %H:%M})" if when else ""
            say(f"{name}{age}: {said}")
    for one in found.earlier:
        line = f"generation {one.generation} replaced {one.tokens:,} tokens {words.ago(one.replaced_at)}"
        console.print(Text(line, style="dim"))


def _print_session(session: SessionDetails) -> None:
    console = out()
    state = "open" if session.ended_at is None else f"ended {words.ago(session.ended_at)}"
    figures = f"{words.count(session.messages, 'message')}, {session.underived:,} not derived yet, {state}"
    console.print(Text.assemble((session.session_key, "bold"), (f"  {figures}", "dim")))
    if session.observation:
        console.print(Text(f"observed: {words.observation(session.observation)}", style="dim"))
    digest = session.digests.get("summary_long") or session.digests.get("summary_short")
    if digest:
        console.print(Text.assemble("\n", (f"digest m{digest.id}", "cyan")))
        paragraph(console, digest.content, indent=2)
    for message in session.said:
        head = f"\nm{message.id} ", "cyan"
        console.print(Text.assemble(head, (message.author, "bold"), (f"  {message.occurred_at:%Y-%m-%d %H:%M}", "dim")))
        paragraph(console, message.content, indent=2)
    if session.next_after is not None:
        hint(f"More messages follow: add --after {session.next_after}.")
