"""Finding the deployment that has a namespace.

The database of one cell, the directory, keeps the table of namespaces. A process remembers what it has read from the
table, so the directory may be away. What it remembers may be old: then the cell refuses the call
(:class:`NamespaceMoved`), nothing is stored, and the router reads the table again.

A namespace that the table does not contain lives in the directory's own cell when that has it, because it was made
before there were cells. Otherwise it is new: the first write notes in the table that it lives in the cell ``new``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from nexus_tasks.cells_file import CellsFile, read_cells
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import (
    ConfigurationError,
    NamespaceMoved,
    NexusError,
    SchemaOutdated,
    StorageUnavailable,
)
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.services.cells import restored
from nexus_tasks.settings import cell_settings
from nexus_tasks.silence import Silence
from nexus_tasks.storage import cells, identity, namespaces, schema, tenancy
from nexus_tasks.storage.models import Placement
from nexus_tasks.storage.placing import place_new
from nexus_tasks.types import Document, check_namespace

log = logging.getLogger(__name__)

T = TypeVar("T")

_OLD_TABLE = (
    "The table of namespaces is older than the move. If its database was restored, run `nexus cells prepare`, which"
    " corrects the table."
)
_TRIES = 3  # a namespace that moves twice during one call is not worth more


@dataclass(frozen=True, kw_only=True)
class CellState(Document):
    """A cell, for ``nexus cells list``."""

    name: str
    namespaces: int  # of the table
    directory: bool
    new: bool  # whether new namespaces are made here
    away: str  # why the cell does not answer; empty when it does
    ready: bool  # whether `nexus cells prepare` has run


class Cells:
    """The cells of a file, each with its deployment. Thread-safe. Nothing connects before the first call.

    Args:
        given: the path of a file of cells, its JSON text, or what :func:`read_cells` returns.

    Raises:
        ConfigurationError: the file or a setting is wrong.
    """

    def __init__(self, given: str | CellsFile) -> None:
        file = read_cells(given) if isinstance(given, str) else given
        self.deployments: Mapping[str, Deployment] = {
            name: Deployment(cell_settings(file, name)) for name in file.cells
        }
        self.directory_name, self.new = file.directory, file.new
        # The directory with a pool of its own. A transaction that makes a namespace holds a connection of its cell's
        # pool while it asks the directory. If both had one pool, a second connection of the pool might never come.
        self._directory_apart = Deployment(cell_settings(file, file.directory))
        self.silence = Silence()
        self._directory_apart.watch = partial(self.silence.note, self.directory_name)
        for name, deployment in self.deployments.items():
            deployment.placing = partial(self._place_new, name)
            deployment.watch = partial(self.silence.note, name)
        self._known = dict[str, str]()  # namespace -> cell, as far as this process has asked
        self._verified = set[str]()  # the cells whose database is the registered one
        self._lock = threading.Lock()

    @property
    def directory(self) -> Deployment:
        """The deployment whose database keeps the table of namespaces."""
        return self.deployments[self.directory_name]

    def close(self) -> None:
        """Close the connections of every cell."""
        for deployment in (*self.deployments.values(), self._directory_apart):
            deployment.close()

    # --- one namespace ------------------------------------------------------------------------------------------------
    def name_of(self, namespace: str, *, writing: bool = True, checked: bool = True, anew: bool = False) -> str:
        """The name of the cell that has a namespace.

        Args:
            namespace: the namespace.
            writing: note in the table where a new namespace lives. Otherwise a new namespace is only looked for.
            checked: check the cell's database, unless this process has done so. A check of a silent cell takes seconds.
            anew: read the table, also when this process remembers the cell. While the directory does not answer, other
                calls still use the remembered cell.

        Raises:
            StorageUnavailable: the directory does not answer, and this process has not asked for the namespace before.
            ConfigurationError: the cell of new namespaces is not prepared, or a cell's database is another one.
        """
        if (found := self._known.get(check_namespace(namespace))) and not anew:
            return found
        placed, is_old = self.silence.ask(self.directory_name, partial(self._find, namespace))
        name = placed.cell if placed else self.directory_name if is_old else self.new
        if name not in self.deployments:
            raise ConfigurationError(
                f"{namespace} lives in the cell {name}, which the file of cells does not name.",
                remedy="Give every process the same file of cells.",
            )
        if checked or placed is None:
            self.check(name)
        if placed is None and (is_old or writing):
            with tenancy.unlimited(), self.directory.database.transaction() as tx:
                if cells.place(tx, namespace, name) != name:  # another process was faster, with another file of cells
                    return self.name_of(namespace, writing=writing, anew=anew)
        is_made = placed or is_old or writing  # else it does not exist, and may be made somewhere else
        if is_made and (checked or placed is None):
            with self._lock:
                self._known[namespace] = name
        elif anew:
            self.forget(namespace)
        return name

    def _find(self, namespace: str) -> tuple[Placement | None, bool]:
        """The row of a namespace in the table; without one, whether the directory's own cell has the namespace."""
        with tenancy.unlimited(), self.directory.database.transaction() as tx:
            placed = cells.find(tx, namespace)
            return placed, placed is None and cells.is_here(tx, namespace)

    def _place_new(self, cell: str, namespace: str) -> None:
        """Note that a cell makes a namespace, for example for a message that was buffered for the wrong cell."""
        place_new(self._directory_apart.database, namespace, cell, directory_name=self.directory_name)

    def knows(self, namespace: str) -> bool:
        """Whether this process remembers the cell of a namespace."""
        return namespace in self._known

    def deployment_of(self, namespace: str, *, writing: bool = True) -> Deployment:
        """The deployment that has a namespace now. See :meth:`name_of`.

        The table is read anew, because what the caller does with the deployment does not follow a move. While the
        directory does not answer, it is the deployment that this process remembers.
        """
        try:
            return self.deployments[self.name_of(namespace, writing=writing, anew=True)]
        except StorageUnavailable:
            if (known := self._known.get(namespace)) is None:
                raise
            return self.deployments[known]

    def forget(self, namespace: str) -> None:
        """Read the cell of a namespace from the table at its next use."""
        with self._lock:
            self._known.pop(namespace, None)

    def route(
        self,
        namespace: str,
        call: Callable[[str], T],
        *,
        writing: bool = True,
        silent: Callable[[str], T] | None = None,
    ) -> T:
        """Run ``call`` with the cell of a namespace. When the namespace has moved, run it again with the new cell.

        Args:
            silent: a function of the cell's name. It is run in place of ``call`` when the cell is silent. Without it,
                the call is refused.

        Raises:
            StorageUnavailable: the cell is silent, and another call tries it.
            NamespaceMoved: the table names a cell that the namespace has left. `nexus cells prepare` corrects it.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                cell = self.name_of(namespace, writing=writing)
                return self.silence.ask(cell, partial(call, cell), instead=silent and partial(silent, cell))
            except NamespaceMoved as error:
                self.forget(namespace)
                if not left:
                    raise NamespaceMoved(error.message, remedy=_OLD_TABLE) from None
        raise AssertionError  # the loop returns or raises

    # --- preparing the cells ------------------------------------------------------------------------------------------
    def prepare(self) -> Mapping[str, int]:
        """Register every cell in the directory, and let no two cells give a row the same id. Safe to repeat.

        Each cell then gives greater ids than any cell has given before. The namespaces that a cell has already are
        noted in the table. One that the table has in another cell stays there, and a warning names it, unless that cell
        has it not any more (:func:`restored.correct`).

        Returns:
            The number of each cell.

        Raises:
            ConfigurationError: two cells have one database, or a cell has another database than before.
            SchemaOutdated: a cell's database is empty or of another release. No cell is changed.
            StorageUnavailable: a cell does not answer. Nothing is lost by calling this again.
        """
        order = sorted(self.deployments, key=lambda name: name != self.directory_name)
        for name in order:
            self._check_schema(name)
        beyond = dict[str, int]()
        for name in order:
            with self.deployments[name].database.transaction() as tx:
                given = cells.highest_ids(tx)
            beyond = {table: max(last, beyond.get(table, 0)) for table, last in given.items()}
        numbers = dict[str, int]()
        for name in order:
            database = self.deployments[name].database
            with database.transaction() as tx:
                own = identity.of_database(tx)
                known = [one.name for one in namespaces.every(tx)]
            with self.directory.database.transaction() as tx:
                numbers[name] = cells.register(tx, name, own)
                strays = cells.place_all(tx, known, name)
            for stray in strays:
                if restored.correct(self, stray, name):
                    continue
                log.warning("The cell %s has a namespace %s, which lives in another cell.", name, stray)
                if twin := restored.twin(self, stray, name):
                    log.warning("The cells %s and %s both have %s: %s", name, twin, stray, restored.remedy(stray))
            with database.transaction() as tx:
                cells.space_ids(tx, numbers[name], beyond)
        restored.put_in_order(self)
        self._verified.update(numbers)
        return numbers

    def residence(self, cell: str, namespace: str) -> str | None:
        """Where a cell's database takes a namespace to live (:attr:`Namespace.residence`); ``None``: unknown to it."""
        with self.deployments[cell].database.transaction() as tx:
            return cells.residence(tx, namespace)

    def _check_schema(self, name: str) -> None:
        found, needed = schema.versions(self.deployments[name].endpoints.database_url)
        if found != needed:
            raise SchemaOutdated(
                f"The database of the cell {name} is {f'at schema {found}' if found else 'empty'}; {needed} is needed.",
                remedy=f"Run `NEXUS_CELL={name} nexus db upgrade`, then this command again.",
            )

    def check(self, name: str) -> None:
        """Check once that a cell is prepared, and that its database is the one that was registered.

        Raises:
            ConfigurationError: it is not.
        """
        if name in self._verified:
            return
        registered = self.silence.ask(self.directory_name, self._registered)
        if name not in registered:
            raise ConfigurationError(
                f"The cell {name} is not prepared.", remedy="Run `nexus cells prepare` once after adding a cell."
            )
        if self.silence.ask(name, partial(self._identity, name)) != registered[name]:
            raise ConfigurationError(
                f"The database of the cell {name} is not the one that was registered.",
                remedy="Correct its database_url in the file of cells.",
            )
        self._verified.add(name)

    def _registered(self) -> Mapping[str, str]:
        with tenancy.unlimited(), self.directory.database.transaction() as tx:
            return cells.registered(tx)

    def _identity(self, name: str) -> str:
        with tenancy.unlimited(), self.deployments[name].database.transaction() as tx:
            return identity.of_database(tx)

    def states(self, *, limit: int = 100, offset: int = 0) -> list[CellState]:
        """The state of each cell, in the order of the file of cells; at most ``limit``, without the first ``offset``.

        Raises:
            StorageUnavailable: the directory does not answer.
        """
        with self.directory.database.transaction() as tx:
            numbers, registered = cells.counts(tx), cells.registered(tx)
        return [
            CellState(
                name=name,
                namespaces=numbers.get(name, 0),
                directory=name == self.directory_name,
                new=name == self.new,
                away=_away(deployment),
                ready=name in registered,
            )
            for name, deployment in islice(self.deployments.items(), offset, offset + limit)
        ]

    def moves(self, *, limit: int = 100, offset: int = 0) -> Sequence[tuple[str, str, str]]:
        """A page of the unfinished moves, sorted by namespace.

        Each is a namespace, the cell that it comes from, and the cell that it goes to.
        """
        with self.directory.database.transaction() as tx:
            return [
                (row.namespace, row.moved_from or row.cell, row.moving_to or row.cell)
                for row in cells.moving(tx, limit=limit, offset=offset)
            ]


def _away(deployment: Deployment) -> str:
    try:
        with deployment.database.reading() as tx:
            identity.of_database(tx)
        with answering():
            deployment.claims.redis.ping()
    except NexusError as error:
        return error.message
    return ""
