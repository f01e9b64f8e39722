"""The directory of cells: which cells there are, which cell has each namespace, and which namespaces are moving.

One cell's database keeps the directory. A cell is a deployment that has some of the namespaces.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from nexus_tasks.errors import ConfigurationError, Transient
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Base, CellRow, Memory, Namespace, Placement
from nexus_tasks.storage.namespaces import USABLE

MOST_CELLS = 256  # a cell's rows get ids that leave the cell's number when divided by this
_LOCK = 0x63656C6C73  # "cells" in ASCII: registering a cell excludes registering another


# --- the cells --------------------------------------------------------------------------------------------------------
def registered(tx: Transaction) -> Mapping[str, str]:
    """The cells that are ready: name → identity of the database."""
    return {row.name: row.identity for row in tx.execute(select(CellRow.name, CellRow.identity))}


def register(tx: Transaction, name: str, identity: str) -> int:
    """Register a cell. Returns its number, which stays the same.

    Raises:
        ConfigurationError: the name belongs to another database, the database to another name, or 256 cells exist.
    """
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    for row in tx.scalars(select(CellRow).where((CellRow.name == name) | (CellRow.identity == identity))):
        if (row.name, row.identity) != (name, identity):
            raise ConfigurationError(
                f"The cell {row.name} is registered with a database, and {name} now names "
                + ("another one." if row.name == name else "the same one."),
                remedy="Give each cell its own database in the file of cells, and keep the cells' names.",
            )
        return row.number
    number = int(tx.scalar(select(func.count()).select_from(CellRow)) or 0)
    if number == MOST_CELLS:
        raise ConfigurationError(f"There are {MOST_CELLS} cells already.", remedy="Use a further table of cells.")
    tx.execute(insert(CellRow).values(name=name, number=number, identity=identity))
    return number


def _sequences() -> list[str]:
    """The tables with an id that Postgres counts. A moved namespace keeps the ids of all but its own row."""
    tables = Base.metadata.sorted_tables
    return [one.name for one in tables if "id" in one.c and one.c.id.identity is not None and one.name != "namespaces"]


def highest_ids(tx: Transaction) -> dict[str, int]:
    """The last id that each table has given to a row."""
    return {
        table: int(tx.scalar(text(f"SELECT last_value FROM {_sequence(tx, table)}")) or 0) for table in _sequences()
    }


def highest_ids_of(tx: Transaction, namespace: str) -> dict[str, int]:
    """The highest id of a namespace's rows in each table that has some."""
    found = {}
    for table in _sequences():
        if "namespace_id" in Base.metadata.tables[table].c:
            query = f"SELECT max(id) FROM {table} WHERE namespace_id = (SELECT id FROM namespaces WHERE name = :n)"
            if highest := tx.scalar(text(query), {"n": namespace}):
                found[table] = int(highest)
    return found


def number_of(tx: Transaction, name: str) -> int:
    """The number of a cell."""
    return int(tx.scalars(select(CellRow.number).where(CellRow.name == name)).one())


def space_ids(tx: Transaction, number: int, beyond: Mapping[str, int], tables: Collection[str] | None = None) -> None:
    """Let each table give only ids that leave ``number`` when divided by 256, and are greater than those ``beyond``.

    So no two cells give a row the same id, and a namespace keeps its ids when it moves. May run any number of times.

    Args:
        tables: only these tables. Default: all.
    """
    for table in _sequences() if tables is None else tables:
        sequence = _sequence(tx, table)
        # This waits for transactions that are taking an id, and holds back later ones.
        tx.execute(text(f"ALTER SEQUENCE {sequence} INCREMENT BY {MOST_CELLS}"))
        last = int(tx.scalar(text(f"SELECT last_value FROM {sequence}")) or 0)
        least = max(last, beyond.get(table, 0)) + 1
        first = least + (number - least) % MOST_CELLS
        if last % MOST_CELLS != number or last < beyond.get(table, 0):
            tx.execute(text(f"SELECT setval('{sequence}', {first}, false)"))


def _sequence(tx: Transaction, table: str) -> str:
    return str(tx.scalar(text("SELECT pg_get_serial_sequence(:table, 'id')"), {"table": table}))


# --- where a namespace lives ------------------------------------------------------------------------------------------
def find(tx: Transaction, namespace: str) -> Placement | None:
    """The row of a namespace in the table, or ``None``."""
    return tx.scalar(select(Placement).where(Placement.namespace == namespace))


def is_here(tx: Transaction, namespace: str) -> bool:
    """Whether the database of the directory itself has the namespace: it was made before there were cells."""
    return bool(tx.scalar(select(Namespace.id).where(Namespace.name == namespace)))


def place(tx: Transaction, namespace: str, cell: str) -> str:
    """Note that a namespace lives in ``cell``, unless the table says already where it lives. Returns its cell."""
    tx.execute(insert(Placement).values(namespace=namespace, cell=cell).on_conflict_do_nothing())
    return str(tx.scalar(select(Placement.cell).where(Placement.namespace == namespace)))


def place_all(tx: Transaction, namespaces: Sequence[str], cell: str) -> Sequence[str]:
    """Note that namespaces live in ``cell``. Returns those that live in another one, as the table says already."""
    strays = list[str]()
    for first in range(0, len(namespaces), 1_000):
        names = namespaces[first : first + 1_000]
        rows = [{"namespace": name, "cell": cell} for name in names]
        tx.execute(insert(Placement).values(rows).on_conflict_do_nothing())
        elsewhere = select(Placement.namespace).where(Placement.namespace.in_(names), Placement.cell != cell)
        strays += tx.scalars(elsewhere.order_by(Placement.namespace))
    return strays


def correct(tx: Transaction, namespace: str, *, was: str, cell: str) -> bool:
    """Note that a namespace lives in ``cell``, if the table has it in ``was``. Returns whether the table had.

    A move that the table has of it is forgotten: it was finished long ago.
    """
    values = {"cell": cell, "moving_to": None, "moved_from": None, "move_id": None, "placed_at": func.now()}
    where = (Placement.namespace == namespace, Placement.cell == was)
    return tx.execute(update(Placement).where(*where).values(**values).returning(Placement.cell)).first() is not None


def residence(tx: Transaction, namespace: str) -> str | None:
    """Where the database of a cell takes a namespace to live (:attr:`Namespace.residence`); ``None``: unknown to it."""
    return tx.scalar(select(Namespace.residence).where(Namespace.name == namespace))


def made_at(tx: Transaction, namespace: str) -> datetime | None:
    """When a namespace was made, if this database takes it to live here. A move keeps the time, so copies share it."""
    usable = Namespace.residence.in_(USABLE)
    return tx.scalar(select(Namespace.created_at).where(Namespace.name == namespace, usable))


def listed(tx: Transaction) -> Sequence[Placement]:
    """All rows of the table, sorted by name."""
    return tx.scalars(select(Placement).order_by(Placement.namespace)).all()


def moving(tx: Transaction, *, limit: int, offset: int) -> Sequence[Placement]:
    """A page of the rows of namespaces that are moving, sorted by name."""
    query = select(Placement).where(Placement.move_id.is_not(None)).order_by(Placement.namespace)
    return tx.scalars(query.limit(limit).offset(offset)).all()


def counts(tx: Transaction) -> Mapping[str, int]:
    """Cell → number of its namespaces in the table."""
    query = select(Placement.cell, func.count()).group_by(Placement.cell)
    return {row[0]: int(row[1]) for row in tx.execute(query)}


def moves_of(tx: Transaction, residence: str, names: Collection[str] | None = None) -> Mapping[str, str]:
    """The namespaces, or those of ``names``, with a residence (:attr:`Namespace.residence`) → the id of their move."""
    query = select(Namespace.name, Namespace.move_id).where(Namespace.residence == residence)
    if names is not None:
        query = query.where(Namespace.name.in_(names))
    return {name: move for name, move in tx.execute(query) if move}


def copies(tx: Transaction) -> Mapping[str, datetime]:
    """The namespaces that do not live in a cell, and of which it has messages still → when they were made."""
    has_messages = select(Memory.id).where(Memory.namespace_id == Namespace.id).exists()
    query = select(Namespace.name, Namespace.created_at).where(Namespace.residence.not_in(USABLE), has_messages)
    return {row[0]: row[1] for row in tx.execute(query.order_by(Namespace.name))}


def gone(tx: Transaction) -> Sequence[str]:
    """The namespaces that have left a cell."""
    return list(tx.scalars(select(Namespace.name).where(Namespace.residence == "left").order_by(Namespace.name)))


def bring_back(tx: Transaction, namespace: str, *, empty: bool = False) -> bool:
    """Let a namespace that has left a cell live there again. Returns whether it does.

    Args:
        empty: do so although the cell has no copy of it.
    """
    has_messages = select(Memory.id).where(Memory.namespace_id == Namespace.id).exists()
    copy = update(Namespace).where(Namespace.name == namespace, Namespace.residence == "left")
    values = {"residence": "here", "other_cell": None, "move_id": None}
    if not empty:
        copy = copy.where(has_messages)
    return tx.execute(copy.values(**values).returning(Namespace.id)).first() is not None


# --- moving -----------------------------------------------------------------------------------------------------------
def begin_move(tx: Transaction, namespace: str, target: str) -> str:
    """Note that a namespace moves to ``target``. Returns the id of the move."""
    move = uuid.uuid4().hex
    values = {"moving_to": target, "move_id": move}
    tx.execute(update(Placement).where(Placement.namespace == namespace).values(**values))
    return move


def switch(tx: Transaction, namespace: str, move: str) -> None:
    """Let the namespace live in the other cell from now on.

    Raises:
        Transient: the move was given up meanwhile.
    """
    done = tx.execute(
        update(Placement)
        .where(Placement.namespace == namespace, Placement.move_id == move, Placement.moving_to.is_not(None))
        .values(moved_from=Placement.cell, cell=Placement.moving_to, moving_to=None, placed_at=func.now())
        .returning(Placement.cell)
    )
    if done.first() is None:
        raise Transient(f"The move of {namespace} was given up.", remedy="Run `nexus cells list`.")


def resume(tx: Transaction, namespace: str, move: str, *, old: str, new: str) -> None:
    """Note that a namespace lives in ``new``, and that its move from ``old`` is not finished."""
    values = {"cell": new, "moving_to": None, "moved_from": old, "move_id": move}
    row = insert(Placement).values(namespace=namespace, **values)
    tx.execute(row.on_conflict_do_update(index_elements=["namespace"], set_=values | {"placed_at": func.now()}))


def end_move(tx: Transaction, namespace: str, move: str) -> None:
    """Note that a move is finished or given up."""
    values = {"moving_to": None, "moved_from": None, "move_id": None}
    tx.execute(update(Placement).where(Placement.namespace == namespace, Placement.move_id == move).values(**values))
