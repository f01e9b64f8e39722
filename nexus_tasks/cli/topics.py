"""``nexus topics``: the topics (files of knowledge) that extraction has written."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace, Offset, PageLimit
from nexus_tasks.cli.output import emit, hint, say

app = typer.Typer(help="Read topics.", no_args_is_help=True)


@app.command("list")
def list_(namespace: Namespace, limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List topics. The most recently changed topic comes first."""
    found = connect().topics(namespace, limit=limit, offset=offset)
    if json:
        emit({"namespace": namespace, "topics": found})
        return
    for topic in found:
        say(f"{topic.filename}  [{topic.type}]  {topic.description}")
    if not found:
        hint("No topics yet. They are written after a coding agent's turn, and by `nexus extract SESSION`.")


@app.command()
def show(
    filename: Annotated[str, typer.Argument(metavar="FILENAME", help="The topic's file name.")],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Show the content of a topic."""
    found = connect().topic(namespace, filename)
    if json:
        emit({"namespace": namespace} | found.to_dict())
    else:
        say(found.content)
