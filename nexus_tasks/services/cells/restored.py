"""What a restored database leaves in disorder: the table of namespaces and the cells do not agree.

The directory's database may be older than the last moves, and that of a cell too. These functions say which cell really
has a namespace, correct the table where only one answer is possible, and name the rest for the operator.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from nexus_tasks.deployment import Deployment
from nexus_tasks.storage import cells as directory
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.namespaces import USABLE

log = logging.getLogger(__name__)


class Cells(Protocol):
    """What these functions need of the cells of a file (``router.Cells``)."""

    deployments: Mapping[str, Deployment]

    @property
    def directory(self) -> Deployment:
        """The deployment whose database keeps the table of namespaces."""
        ...

    def residence(self, cell: str, namespace: str) -> str | None:
        """Where a cell's database takes a namespace to live."""
        ...

    def forget(self, namespace: str) -> None:
        """Read the cell of a namespace from the table at its next use."""
        ...


def remedy(namespace: str) -> str:
    """What an operator does when two cells have a namespace, because one cell's database was restored."""
    return (
        "The database of one of the two was restored. Compare them with"
        f" `NEXUS_CELL=... nexus sessions list --namespace {namespace}`. `nexus cells erase {namespace} CELL`"
        " deletes the older one, and the table then names the other cell."
    )


def put_in_order(cells: Cells) -> None:
    """Go on with what a restored directory has forgotten, and name what an operator must decide."""
    _resume_moves(cells)
    for cell in cells.deployments:
        for namespace in closed(cells, cell):
            log.warning(
                "A move that is not in the table has closed %s in the cell %s. `nexus cells move %s %s` opens it.",
                *(namespace, cell, namespace, cell),
            )
        _name_copies(cells, cell)
        _name_lost(cells, cell)


def twin(cells: Cells, namespace: str, cell: str, among: Collection[str] | None = None) -> str | None:
    """Another cell that has a copy of the namespace of ``cell``; ``None``: no cell has one.

    Both copies are in use: a move has left one, and then the database of the old cell was restored to before the
    move. Which of the two cells was restored is not known here.

    Args:
        among: the cells that are asked. Default: all.
    """
    with cells.deployments[cell].database.transaction() as tx:
        made_at = directory.made_at(tx, namespace)
    for name in cells.deployments if among is None else among:
        if made_at is not None and name != cell:
            with cells.deployments[name].database.transaction() as tx:
                if directory.made_at(tx, namespace) == made_at:
                    return name
    return None


def correct(cells: Cells, namespace: str, cell: str) -> bool:
    """Correct the table for a namespace that ``cell`` has, when the cell that the table names has it not any more.

    The table may be older than the last move of the namespace, because the directory's database was restored.

    Returns:
        Whether the table is right now.
    """
    with tenancy.unlimited():
        with cells.directory.database.transaction() as tx:
            row = directory.find(tx, namespace)
        if row is None or row.cell == cell:
            return row is not None
        if row.cell not in cells.deployments:
            return False
        with cells.deployments[row.cell].database.transaction() as tx:
            residence = directory.residence(tx, namespace)
            # A move that the table does not have has begun to bring it there, and was cut off.
            is_arriving = directory.moves_of(tx, "arriving", [namespace]).get(namespace, row.move_id) != row.move_id
        if residence not in (None, "left") and not is_arriving:
            return False
        with cells.directory.database.transaction() as tx:
            is_right = directory.correct(tx, namespace, was=row.cell, cell=cell)
    cells.forget(namespace)
    if is_right:
        log.warning("The table of namespaces had %s in %s. It is in %s.", namespace, row.cell, cell)
    return is_right


def having(cells: Cells, namespace: str) -> Sequence[str]:
    """The cells that have a namespace in use, or another one of its name."""
    return [name for name in cells.deployments if cells.residence(name, namespace) in USABLE]


def _having_made(cells: Cells, namespace: str, made_at: datetime) -> str | None:
    """The cell that has a namespace in use which was made at a time; ``None``: there is none."""
    for name in having(cells, namespace):
        with cells.deployments[name].database.transaction() as tx:
            if directory.made_at(tx, namespace) == made_at:
                return name
    return None


def copies(cells: Cells, cell: str) -> Mapping[str, str | None]:
    """The namespaces that do not live in a cell, and of which it has a copy → the cell in which they live.

    ``None``: no cell has this namespace in use. Those that are moving are left out, unless the new cell was restored to
    before the move.
    """
    with cells.deployments[cell].database.transaction() as tx:
        made = directory.copies(tx)
    with cells.directory.database.transaction() as tx:
        rows = [row for one in made if (row := directory.find(tx, one)) is not None and row.move_id is not None]
    moving = {row.namespace for row in rows if cells.residence(row.cell, row.namespace) is not None}
    return {one: _having_made(cells, one, at) for one, at in made.items() if one not in moving}


def is_lost(cells: Cells, namespace: str) -> bool:
    """Whether a namespace has left two cells at least, and no cell has it or a copy.

    A cell was restored to a time when the namespace lived in another cell, which has erased its copy since. If only one
    cell knows the namespace, a newer backup of the other cell may have it. So may a registered cell that is not in the
    file.
    """
    with cells.directory.database.transaction() as tx:
        if not directory.registered(tx).keys() <= cells.deployments.keys():
            return False
    known = 0
    for name, deployment in cells.deployments.items():
        residence = cells.residence(name, namespace)
        if residence not in (None, "left"):
            return False
        with deployment.database.transaction() as tx:
            if namespace in directory.copies(tx):
                return False
        known += residence == "left"
    return known > 1


def closed(cells: Cells, cell: str) -> Sequence[str]:
    """The namespaces that live in a cell, and that a move has closed which the table does not have."""
    with cells.deployments[cell].database.transaction() as tx:
        moves = {**directory.moves_of(tx, "draining"), **directory.moves_of(tx, "leaving")}
    with cells.directory.database.transaction() as tx:
        rows = [(directory.find(tx, namespace), move) for namespace, move in sorted(moves.items())]
    return [row.namespace for row, move in rows if row and row.cell == cell and row.move_id != move]


def _name_copies(cells: Cells, cell: str) -> None:
    for namespace, home in copies(cells, cell).items():
        if home is not None:
            log.warning(
                "The cell %s has a copy of %s, which lives in %s. `nexus cells erase %s %s` deletes the copy.",
                *(cell, namespace, home, namespace, cell),
            )
        elif not having(cells, namespace):
            log.warning(
                "The cell %s has the only copy of %s: the cell that had it was restored. `nexus cells move %s %s`"
                " lets the namespace live there again, as it was when it left.",
                *(cell, namespace, namespace, cell),
            )
        else:
            log.warning(
                "The cell %s has the only copy of an earlier %s: the cell that had it was restored, and has made"
                " another namespace of this name.",
                *(cell, namespace),
            )


def _name_lost(cells: Cells, cell: str) -> None:
    with cells.deployments[cell].database.transaction() as tx:
        gone = directory.gone(tx)
    with cells.directory.database.transaction() as tx:
        placed = [one for one in gone if (row := directory.find(tx, one)) is not None and row.cell == cell]
    for namespace in placed:
        if is_lost(cells, namespace):
            log.warning(
                "No cell has memory of %s: the cell %s was restored to a time when the namespace lived in another cell."
                " `nexus cells move %s %s` lets the namespace live there again, without memory.",
                *(namespace, cell, namespace, cell),
            )


def _resume_moves(cells: Cells) -> None:
    """Note the moves that were cut off just before the new cell was opened, and that the table does not have.

    The directory's database was restored to before the move. No cell has such a namespace in use: it has left one,
    and its copy in the other has the id of the same move. A process may go on with such a move meanwhile.
    """
    for new, deployment in cells.deployments.items():
        with deployment.database.transaction() as tx:
            arriving = directory.moves_of(tx, "arriving")
        for old, other in cells.deployments.items() if arriving else ():
            with other.database.transaction() as tx:
                left = directory.moves_of(tx, "left", arriving)
            for namespace, move in sorted(arriving.items() & left.items()):
                _resume_move(cells, namespace, move, old, new)


def _resume_move(cells: Cells, namespace: str, move: str, old: str, new: str) -> None:
    with cells.directory.database.transaction() as tx:
        row = directory.find(tx, namespace)
    if row and row.move_id == move and row.moving_to is None:
        return
    if having(cells, namespace):  # the move is finished, or it was, and then the new cell was restored
        return
    with cells.directory.database.transaction() as tx:
        directory.resume(tx, namespace, move, old=old, new=new)
    cells.forget(namespace)
    log.warning(
        "The move of %s from the cell %s is not finished. Run `nexus cells move %s %s`.",
        *(namespace, old, namespace, new),
    )
