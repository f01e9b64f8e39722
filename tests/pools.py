"""Finding code that opens a second transaction of a database while it has one open.

Each transaction has a connection of the pool. When as many threads as the pool has connections do so at once, each of
them waits for the others until the pool's time limit.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from nexus_tasks.storage import engine

_PASSED_ON = (engine.__file__, __file__, "contextlib.py")  # files that open a transaction for their caller


class Nesting:
    """Where a thread opened a second transaction of a :class:`Database` while one of the product's was open.

    A test's own transaction does not count: a test may hold a lock while it calls the product.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._open = threading.local()

    def _watched(
        self, opening: Callable[..., AbstractContextManager[Any]], *, stays: bool = True
    ) -> Callable[..., AbstractContextManager[Any]]:
        @contextmanager
        def watching(database: engine.Database, *args: Any, **options: Any) -> Iterator[Any]:
            held: list[tuple[int, str | None]] = vars(self._open).setdefault("held", [])
            where = _opener()
            for other, held_at in held:
                if where and held_at and other == id(database):
                    self.found.append(f"{where}\n--- while this one was open:\n{held_at}")
            held.append((id(database), where if stays else None))
            try:
                with opening(database, *args, **options) as given:
                    yield given
            finally:
                held.remove((id(database), where if stays else None))

        return watching

    @contextmanager
    def watching(self) -> Iterator[Nesting]:
        """Watch every database of this process."""
        # A dedicated connection counts where it is taken out of the pool. It leaves the pool at once.
        watched = {
            "_transaction": self._watched(engine.Database._transaction),
            "reading": self._watched(engine.Database.reading),
            "dedicated_connection": self._watched(engine.Database.dedicated_connection, stays=False),
        }
        with patch.multiple(engine.Database, **watched):
            yield self


def _opener() -> str | None:
    """The frames of the product that open a transaction, innermost last. ``None``: a test opens it."""
    frames = [one for one in traceback.extract_stack(sys._getframe()) if not one.filename.endswith(_PASSED_ON)]
    if "/tests/" in frames[-1].filename:
        return None
    return "".join(traceback.format_list([one for one in frames if "site-packages" not in one.filename][-12:]))
