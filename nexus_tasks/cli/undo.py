"""``nexus undo``: one reflection, reversed."""

from __future__ import annotations

from typing import Annotated

import typer

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json, Namespace
from nexus_tasks.cli.output import emit
from nexus_tasks.cli.show import words


def undo(
    reflection: Annotated[
        str, typer.Argument(metavar="REFLECTION", help="A reflection's number, or the id of its job.")
    ],
    namespace: Namespace,
    json: Json = False,
) -> None:
    """Reverse one reflection exactly: what it concluded goes, what it changed in facts is as it was before."""
    undone = connect().undo(namespace, int(reflection) if reflection.isdecimal() else reflection)
    if json:
        emit(undone)
        return
    if undone["status"] == "unchanged":
        print(f"Reflection {undone['reflection']} was undone before.")
        return
    removed = words.count(len(undone["removed"]), "memory", "memories")
    revived, restored = (words.count(len(undone[name]), "fact") for name in ("revived", "restored"))
    print(
        f"Reflection {undone['reflection']} ({undone['observer']} about {undone['subject']}) is undone: "
        f"{removed} removed, {revived} in force again, {restored} as before it."
    )
