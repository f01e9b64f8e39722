"""Making a namespace in one cell only.

A process of one cell, such as a worker, makes namespaces too, for example for the messages of a coding agent. The table
of namespaces may say that the namespace lives in another cell. Clients look only there, and would never find the
messages of a second namespace.
"""

from __future__ import annotations

from nexus_tasks.errors import ConfigurationError, NamespaceMoved, NamespaceMoving, StorageMisconfigured, Transient
from nexus_tasks.storage import cells, tenancy
from nexus_tasks.storage.engine import Database


def place_new(directory: Database, namespace: str, cell: str, *, directory_name: str, own: str | None = None) -> None:
    """Note that a new namespace is made in a cell.

    Args:
        directory: the database with the table of namespaces.
        namespace: the namespace, which the cell does not have yet.
        cell: the cell.
        directory_name: the name of the cell that ``directory`` belongs to.
        own: the identity of the cell's database, to be compared with the registered one. ``None``: they were compared.

    Raises:
        NamespaceMoved: the namespace lives in another cell.
        NamespaceMoving: the table cannot be read now. Messages are buffered, and other writes may be repeated.
        ConfigurationError: the table refuses this process, or the cell is registered with another database.
    """
    try:
        with tenancy.unlimited(), directory.transaction() as tx:
            registered = cells.registered(tx)
            if own not in (None, registered.get(cell, own)):
                raise ConfigurationError(
                    f"The database of the cell {cell} is not the one that was registered. It gets no namespace.",
                    remedy="Correct the cell's database_url in the file of cells.",
                )
            if placed := cells.find(tx, namespace):
                lives_in = placed.cell
            elif cell != directory_name and cells.is_here(tx, namespace):
                lives_in = directory_name  # it was made before there were cells
            elif cell in registered:
                lives_in = cells.place(tx, namespace, cell)
            else:
                lives_in = cell  # `nexus cells prepare` notes the namespaces of a cell that is not prepared yet
    except StorageMisconfigured as error:  # waiting does not help
        raise ConfigurationError(
            f"Whether {namespace} lives in another cell cannot be asked: {error.message}", remedy=error.remedy
        ) from error
    except Transient as error:
        raise NamespaceMoving(
            f"Whether {namespace} lives in another cell is not known now: {error.message}",
            remedy="Try again when the database of the directory answers.",
        ) from error
    if lives_in != cell:
        raise NamespaceMoved(f"The namespace {namespace} lives in the cell {lives_in}.")
