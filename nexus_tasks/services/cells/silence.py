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

_SLOW = 1.0  # seconds; a call that fails later than this has waited for a silent cell
_PAUSE = 1.0  # seconds between a failed call of a silent cell and the next one
_LEASE = 10.0  # seconds for which one caller tries a silent cell alone: its call may be a question that takes a minute


class Silence:
    """The silent cells, as the calls of this process have found them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent = dict[str, tuple[float, str]]()  # cell → when it may be tried again, and why it is away

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
        begun = time.monotonic()
        with self._lock:
            again_at, why = self._silent.get(cell, (0.0, ""))
            tries = begun >= again_at
            if tries and why:
                self._silent[cell] = begun + _LEASE, why
        if not tries:
            if instead is not None:
                return instead()
            raise StorageUnavailable(why)
        try:
            found = call()
        except Exception as error:
            if isinstance(error, StorageUnavailable) and error.outage and not isinstance(error, StorageMisconfigured):
                self._is_away(cell, begun, error.message)
            else:
                self._may_be_tried(cell)
            raise
        if getattr(found, "buffered", 0):  # the call has waited for the cell, and kept its messages
            self._is_away(cell, begun, "Postgres does not answer.")
        else:
            self._answers(cell)
        return found

    def holds(self, cell: str) -> bool:
        """Whether a cell is silent."""
        return cell in self._silent

    def _is_away(self, cell: str, begun: float, why: str) -> None:
        ended = time.monotonic()
        with self._lock:
            if cell in self._silent or ended - begun >= _SLOW:
                self._silent[cell] = ended + _PAUSE, why

    def _may_be_tried(self, cell: str) -> None:
        """Let the next caller try a silent cell: a call has failed, perhaps before it asked the cell."""
        with self._lock:
            if known := self._silent.get(cell):
                self._silent[cell] = 0.0, known[1]

    def _answers(self, cell: str) -> None:
        with self._lock:
            self._silent.pop(cell, None)
