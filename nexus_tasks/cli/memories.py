"""``nexus memories``: what is remembered."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import AsOf, Json, Levels, Limit, Namespace, Observer, Session, Subject
from nexus_tasks.cli.output import emit

app = typer.Typer(help="Read what is remembered.", no_args_is_help=True)


@app.command("list")
def list_(
    namespace: Namespace,
    observer: Observer = None,
    subject: Subject = None,
    session: Session = None,
    level: Levels = None,
    as_of: AsOf = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List memories, newest first."""
    found = connect().memories(
        namespace, observer=observer, subject=subject, session_key=session, levels=level, as_of=as_of, limit=limit
    )
    if json:
        emit({"namespace": namespace, "memories": found})
        return
    from nexus_tasks.cli.show import memories as show

    show.listed(found)


@app.command()
def show(
    memory: Annotated[str, typer.Argument(metavar="ID", help="A memory's number: 17 or m17.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Show one memory with its evidence, what rests on it, and what it superseded."""
    number = memory.removeprefix("m")
    if not number.isdecimal() or int(number) >= 2**63:
        raise typer.BadParameter(f"{memory!r} is not a memory's number such as 17 or m17.", param_hint="ID")
    found = connect().memory(namespace, int(number))
    if json:
        emit({"namespace": namespace} | found)
        return
    from nexus_tasks.cli.show import memories as show

    show.one(found)
