"""The heartbeats of a prefork pool's children, as the main process sees them.

A child has a heartbeat of its own. It notes each turn in memory that it shares with the main process, so that `/livez`
and the metrics, which the main process serves, know of a child that is stuck.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Any

from billiard.process import current_process

CHILDREN = 1_024  # children with a larger number are not seen
_NOTE = struct.Struct("=qd")  # the child's process id, and the time of its last turn by time.monotonic()
_notes = mmap.mmap(-1, CHILDREN * _NOTE.size)  # made at import, so before the pool forks


def place_in_pool() -> int | None:
    """The number of this process in its prefork pool; ``None`` outside a pool's child."""
    place: int | None = getattr(current_process(), "index", None)
    return place


def note_turn() -> None:
    """Note that the heartbeat of this process has turned. Does nothing outside a pool's child."""
    place = place_in_pool()
    if place is not None and place < CHILDREN:
        _NOTE.pack_into(_notes, place * _NOTE.size, os.getpid(), time.monotonic())


def ages(worker: Any) -> list[float]:
    """Seconds since the heartbeats of the living children last turned.

    A child that has not come up yet has none. Celery ends a child that does not come up within 4 s.

    Args:
        worker: Celery's worker.
    """
    now, found = time.monotonic(), []
    pool = getattr(getattr(worker, "pool", None), "_pool", None)
    for child in list(getattr(pool, "_pool", None) or ()):
        if getattr(child, "index", CHILDREN) < CHILDREN:
            pid, at = _NOTE.unpack_from(_notes, child.index * _NOTE.size)
            if pid == child.pid:
                found.append(now - at)
    return found
