"""Finding code that opens a second transaction of a database while it has one open.

Each transaction has a connection of the pool. When as many threads as the pool has connections do so at once, each of
them waits for the others until the pool's time limit.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from traceback import FrameSummary
from typing import Any
from unittest.mock import patch

from nexus_tasks.storage import engine

_PASSED_ON = (engine.__file__, __file__, "contextlib.py")  # they open a transaction for their caller
_Opening = Callable[..., AbstractContextManager[Any]]


class Nesting:
    """Where a thread opened a second transaction of a :class:`Database` while one of the product's was open.

    A transaction that a test opens, or that is opened in a function by which a test replaces one of the product, does
    not count: a test may hold a lock while it calls the product.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._open = threading.local()

    @contextmanager
    def watching(self) -> Iterator[Nesting]:
        """Watch every database of this process."""
        with ExitStack() as stack:
            for name in ("transaction", "snapshot", "reading", "dedicated_connection"):
                watched = self._watched(getattr(engine.Database, name), stays=name != "dedicated_connection")
                stack.enter_context(patch.object(engine.Database, name, watched))
            yield self

    def _watched(self, opening: _Opening, *, stays: bool) -> _Opening:
        """``opening``, which also notes the open transactions. Without ``stays``, its own is not noted."""

        @contextmanager
        def watched(database: engine.Database) -> Iterator[Any]:
            held: list[tuple[Any, engine.Database, Sequence[FrameSummary]]] = vars(self._open).setdefault("held", [])
            frames = _opener()
            for session, other, before in held:
                # What runs after the commit is still inside the block, but the connection is back in the pool.
                if other is database and session.in_transaction() and not _of_tests(_without_common(frames, before)):
                    self.found.append(f"{_said(frames)}\n--- while this one was open:\n{_said(before)}")
            with opening(database) as given:
                mine = (given, database, frames)
                if stays and not _of_tests(frames[-1:]):
                    held.append(mine)
                try:
                    yield given
                finally:
                    held[:] = [one for one in held if one is not mine]

        return watched


def _opener() -> Sequence[FrameSummary]:
    """The frames that open a transaction, innermost last."""
    frames = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe()), lookup_lines=False)
    return [one for one in reversed(frames) if not one.filename.endswith(_PASSED_ON)]


def _without_common(frames: Sequence[FrameSummary], before: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    common = 0
    for one, other in zip(frames, before, strict=False):
        if (one.filename, one.name) != (other.filename, other.name):
            break
        common += 1
    return frames[max(common - 1, 0) :]


def _of_tests(frames: Sequence[FrameSummary]) -> bool:
    return any("/tests/" in one.filename for one in frames)


def _said(frames: Sequence[FrameSummary]) -> str:
    own = [one for one in frames if "site-packages" not in one.filename]
    return "".join(traceback.format_list(own[-12:]))
