"""A worker's threads share two heaps of glibc, unless the operator has chosen a number."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

HEAPS = """
import ctypes, threading
from nexus_tasks.idempotency.worker.malloc_arenas import limit_arenas
limit_arenas()
c, all_run = ctypes.CDLL(None), threading.Barrier(9)
def allocate():
    c.malloc(1_000)
    all_run.wait()
for _ in range(8):
    threading.Thread(target=allocate).start()
all_run.wait()
c.fopen.restype = ctypes.c_void_p
file = c.fopen(b"/dev/stdout", b"w")
c.malloc_info(0, ctypes.c_void_p(file))
c.fflush(ctypes.c_void_p(file))
"""


def heaps(**environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | environment
    done = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, env=kept, check=True)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_eight_threads_share_two_heaps() -> None:
    assert heaps() <= 2
    assert heaps(MALLOC_ARENA_MAX="4") == 4
