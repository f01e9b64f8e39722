"""Checking access tokens when several cells have tokens: each cell has those of its namespaces."""

from __future__ import annotations

from functools import partial

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError
from nexus_tasks.services.access import TokenChecker
from nexus_tasks.services.cells.gathering import AWAY
from nexus_tasks.services.cells.router import Cells
from nexus_tasks.storage import tenancy
from nexus_tasks.storage.namespaces import USABLE
from nexus_tasks.storage.tokens import UNKNOWN, Checked

_REMEMBERED = 10_000  # tokens


class CellTokenChecker(TokenChecker):
    """Checks the tokens of requests in all cells. Uses and refusals are in the audit log of the token's cell.

    A token moves with its namespace: it stays valid, and the old cell does not know it any more. But when the old
    cell's database is restored, it knows the token as it was before the move, and perhaps not that it was revoked.
    """

    def __init__(self, cells: Cells) -> None:
        super().__init__(cells.directory)  # counts the refusals of unknown tokens
        self._all = cells
        self._cells = {name: TokenChecker(deployment) for name, deployment in cells.deployments.items()}
        self._found = dict[str, str]()  # namespace → the cell in which a token of it was found last
        self._last = dict[int, str]()  # the hash of a token → the cell in which it was found last

    def any_valid(self) -> bool:
        """Whether any namespace of a cell that answers has a token that is not revoked.

        Raises:
            StorageUnavailable: a cell is away, and the others have no token.
        """
        away: NexusError | None = None
        for checker in self._cells.values():
            try:
                if checker.any_valid():
                    return True
            except AWAY as error:
                away = error
        if away:
            raise away
        return False

    def check(self, given: str) -> Checked:
        """Check a token in each cell until one knows it, first in the cell that knew it last.

        A silent cell is not waited for, except by the first requests and then by one at a time.

        Raises:
            StorageUnavailable: no cell that answers knows the token, and another cell may know it.
            NamespaceMoving: only the cell in which the token's namespace is arriving knows it.
        """
        away: NexusError | None = None
        key = hash(given)
        last = self._last.get(key)
        for asked in sorted(self._cells, key=lambda one: one != last):
            try:
                name, found = asked, self._look_up(asked, given)
                if not found.refusal and (home := self._home(found.namespace, asked)) != asked:
                    name, found = home, self._look_up(home, given)
            except AWAY as error:
                away = error
                continue
            if found.refusal != UNKNOWN.refusal:
                if len(self._last) >= _REMEMBERED:
                    self._last.clear()
                self._found[found.namespace] = self._last[key] = name
                return self._cells[name].noted(found)
        if away:
            raise away
        return self.noted(UNKNOWN)

    def _look_up(self, cell: str, given: str) -> Checked:
        return self._all.silence.ask(cell, partial(self._cells[cell].look_up, given))

    def _home(self, namespace: str, found_in: str) -> str:
        """The cell that says whether a token of a namespace is valid: that of the table, if it has the namespace.

        Otherwise it is ``found_in``, the cell that knows the token: while the namespace moves, and when the table
        cannot be read or is older than the last move. Then no call reaches another cell's memory.

        Raises:
            StorageUnavailable: the cell of the table does not answer.
        """
        try:
            if self._all.name_of(namespace, writing=False, checked=False) == found_in:
                return found_in
            # It may have moved since this process has asked.
            home = self._all.name_of(namespace, writing=False, checked=False, anew=True)
        except NexusError:
            return found_in
        if home == found_in:
            return found_in
        with tenancy.unlimited():
            residence = self._all.silence.ask(home, partial(self._all.residence, home, namespace))
        return home if residence in USABLE else found_in

    def note_refusal(self, token: Checked, reason: str) -> None:
        """Count a refused request in the cell of the token."""
        if name := self._found.get(token.namespace):
            self._cells[name].note_refusal(token, reason)
        else:
            super().note_refusal(token, reason)

    def write_refusals(self) -> None:
        """Write the counted refusals of every cell that is not silent."""
        if not self._all.silence.holds(self._all.directory_name):
            super().write_refusals()
        for name, checker in self._cells.items():
            if not self._all.silence.holds(name):
                checker.write_refusals()


def checker_of(cells: Cells | None, deployment: Deployment) -> TokenChecker:
    """The checker for a server: of all cells, or else of one deployment."""
    return TokenChecker(deployment) if cells is None else CellTokenChecker(cells)
