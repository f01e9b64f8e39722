"""Which cells are silent. A few calls wait for a silent cell, and the others are refused at once.

Otherwise the calls of one silent cell would hold every thread of a server, and the calls of all cells would wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from nexus_tasks.errors import StorageMisconfigured, StorageUnavailable

T = TypeVar("T")

_SLOW = 1.0  # seconds; a transaction that fails later than this has waited for a silent cell
_PAUSE = 1.0  # seconds between a failed call of a silent cell and the next one
_LEASE = 10.0  # seconds for which one caller tries a silent cell alone; its first transaction ends this


class Silence:
    """The silent cells, as the transactions of this process have found them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent = dict[str, tuple[float, str]]()  # cell → when it may be tried again, and why it is away
        self._answered = dict[str, float]()  # cell → when it has answered last

    def ask(self, cell: str, call: Callable[[], T], *, instead: Callable[[], T] | None = None) -> T:
        """Ask a cell.

        Args:
            cell: the name of the cell.
            call: asks it.
            instead: called when the cell is silent, and another caller tries it or has just tried it.

        Raises:
            StorageUnavailable: the cell is silent, and there is no ``instead``.
            any error of ``call``.
        """
        now = time.monotonic()
        with self._lock:
            known = self._silent.get(cell)
            tries = known is None or now >= known[0]
            if tries and known:
                known = self._silent[cell] = now + _LEASE, known[1]
        if known is None:
            return call()
        if not tries:
            if instead is not None:
                return instead()
            raise StorageUnavailable(known[1])
        try:
            return call()
        finally:
            with self._lock:
                if self._silent.get(cell) is known:  # the call has failed before it asked the cell
                    self._silent[cell] = 0.0, known[1]

    def holds(self, cell: str) -> bool:
        """Whether a cell is silent."""
        return cell in self._silent

    def note(self, cell: str, begun: float, error: Exception | None) -> None:
        """Note how a transaction of a cell has ended (see :class:`Database`).

        Only waiting for Postgres is silence. A call may also take long for its own sake, or wait for another one.
        """
        if error is None:
            with self._lock:
                self._answered[cell] = time.monotonic()
                self._silent.pop(cell, None)
        elif isinstance(error, StorageUnavailable) and error.outage and not isinstance(error, StorageMisconfigured):
            ended = time.monotonic()
            with self._lock:
                if self._answered.get(cell, float("-inf")) > begun:
                    return  # only this connection was silent, or the cell is back
                if cell in self._silent or ended - begun >= _SLOW:
                    self._silent[cell] = ended + _PAUSE, error.message
