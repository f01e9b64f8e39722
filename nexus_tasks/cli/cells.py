"""``nexus cells``: the deployments that share the namespaces, and moving a namespace between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.namespaces import Name
from nexus_tasks.cli.options import Json, Offset, PageLimit
from nexus_tasks.cli.output import emit, hint, warn
from nexus_tasks.errors import ConfigurationError

if TYPE_CHECKING:
    from nexus_tasks.services.cells.router import Cells

app = typer.Typer(help="List cells (deployments that share the namespaces), and move namespaces.", no_args_is_help=True)

Cell = Annotated[str, typer.Argument(metavar="CELL", help="The cell's name in the file of cells.")]


def _cells() -> Cells:
    from nexus_tasks.services.limits import refuse_limited

    client = connect()
    refuse_limited(client.limit, "nexus cells")
    found = client.cells
    if found is None:
        raise ConfigurationError(
            "This command works on all cells, and NEXUS_CELLS is not set or NEXUS_CELL names one.",
            remedy="Set NEXUS_CELLS to the file of cells, and unset NEXUS_CELL (see docs/cells.md).",
        )
    return found


@app.command("list")
def list_(limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List the cells with the number of their namespaces, and the moves that are not finished: a page of each."""
    cells = _cells()
    states, moves = cells.states(limit=limit, offset=offset), cells.moves(limit=limit, offset=offset)
    if json:
        shown = [{"namespace": name, "from": old, "to": new} for name, old, new in moves]
        emit({"cells": states, "moves": shown})
        return
    rows = [
        (
            one.name,
            f"{one.namespaces:,}",
            " ".join(filter(None, ("directory" if one.directory else "", "new" if one.new else ""))),
            one.away or ("" if one.ready else "not prepared"),
        )
        for one in states
    ]
    table(("cell", "namespaces", "role", "state"), rows, elastic="state", empty="There are no cells.")
    for name, old, new in moves:
        warn(f"{name} is moving from {old} to {new}. `nexus cells move {name} {new}` goes on with it.")


@app.command()
def prepare(json: Json = False) -> None:
    """Make every cell ready: run this once after a cell was added to the file. It may run again at any time."""
    numbers = _cells().prepare()
    if json:
        emit({"cells": dict(numbers)})
    else:
        print(f"{words.count(len(numbers), 'cell')} ready: {', '.join(numbers)}.")


@app.command()
def move(
    namespace: Name,
    cell: Cell,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the copy in the old cell; `nexus cells erase` deletes it later.")
    ] = False,
    json: Json = False,
) -> None:
    """Move a namespace to another cell, or go on with a move that was cut off.

    During the copy the namespace can only be read, and messages wait in the producers' session buffers. Moving a
    namespace to the cell where it is gives an unfinished move up.
    """
    from nexus_tasks.services.cells import moving

    receipt = moving.move(_cells(), namespace, cell, keep=keep, note=lambda step: hint(f"{step}: done"))
    if json:
        emit(receipt)
    elif receipt.moved_from is None:
        print(f"{namespace} is in {cell}.")
    else:
        total = sum(receipt.rows.values())
        print(f"{namespace} is in {cell}: {words.count(total, 'row')}, {receipt.paused_seconds:.1f} s read-only.")


@app.command()
def erase(namespace: Name, cell: Cell, json: Json = False) -> None:
    """Delete what a cell still has of a namespace that lives in another cell, such as the copy of `move --keep`."""
    from nexus_tasks.services.cells import moving

    cells = _cells()
    if cell not in cells.deployments:
        raise typer.BadParameter(f"{cell!r} is none of {', '.join(sorted(cells.deployments))}.")
    gone = moving.erase_copy(cells, namespace, cell)
    if json:
        emit({"deleted": gone})
    else:
        print(f"{words.count(sum(gone.values()), 'row')} of {namespace} deleted in {cell}.")
