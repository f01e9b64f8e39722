"""Finding code that takes a second connection of a pool while it holds one.

When as many threads as the pool has connections do so at once, each waits for the others until the pool's time limit.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sqlalchemy import event
from sqlalchemy.pool import Pool

_HELD_BY = "nexus-tests-held-by"  # in a connection's record: the thread that has taken it


class Nesting:
    """The connections that each thread holds, and where a thread took a second one of the same pool.

    A connection that a test takes itself does not count: a test may hold a lock while it calls the product.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._held: dict[tuple[int, int], list[str]] = {}  # thread and pool → where its connections were taken
        self._lock = threading.Lock()

    def taken(self, _connection: object, record: Any, _proxy: object) -> None:
        """A thread takes a connection out of a pool."""
        where = _taker(sys._getframe())
        if where is None:
            return
        key = (threading.get_ident(), id(record._ConnectionRecord__pool))
        with self._lock:
            held = self._held.setdefault(key, [])
            if held:
                self.found.append(f"{where}\n--- while it held the connection that was taken here:\n{held[-1]}")
            held.append(where)
        record.info[_HELD_BY] = (key, where)

    def given_back(self, _connection: object, record: Any) -> None:
        """A connection comes back to its pool, perhaps by another thread."""
        taken = record.info.pop(_HELD_BY, None)
        if taken is not None:
            key, where = taken
            with self._lock:
                self._held[key].remove(where)
                if not self._held[key]:
                    del self._held[key]


def _taker(frame: FrameType | None) -> str | None:
    """The product's frames that take a connection, innermost last. ``None``: a test takes it."""
    frames = traceback.extract_stack(frame)
    outside = [one for one in frames if "/nexus_tasks/" in one.filename or "/tests/" in one.filename]
    outside = [one for one in outside if not one.filename.endswith(("/storage/engine.py", "/tests/pools.py"))]
    if not outside or "/tests/" in outside[-1].filename:
        return None
    return "".join(traceback.format_list(outside[-12:]))


@contextmanager
def watched() -> Iterator[Nesting]:
    """Watch all pools of this process."""
    nesting = Nesting()
    event.listen(Pool, "checkout", nesting.taken)
    event.listen(Pool, "checkin", nesting.given_back)
    event.listen(Pool, "detach", nesting.given_back)
    try:
        yield nesting
    finally:
        event.remove(Pool, "checkout", nesting.taken)
        event.remove(Pool, "checkin", nesting.given_back)
        event.remove(Pool, "detach", nesting.given_back)
