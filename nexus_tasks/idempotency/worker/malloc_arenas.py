"""Keeps a worker's threads from a heap each."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

ARENAS = 2
_M_ARENA_MAX = -8  # mallopt(3)


def limit_arenas() -> None:
    """Let all threads share two heaps (arenas), if the C library is glibc and the operator has not chosen a number.

    glibc gives each thread a heap of its own, up to 8 per core, and a heap keeps what its thread has freed. In six
    minutes of `benchmarks.soak` a worker with 8 threads grew by 14.5 MiB with glibc's number of arenas, and by 5.4 MiB
    with two.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with suppress(AttributeError, OSError):  # another C library has no mallopt
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
