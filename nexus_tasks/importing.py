"""No fork while another thread imports a module.

Python locks a module while a thread imports it. A child that is forked meanwhile has the lock without the thread that
would release it, so its first use of the module waits for ever. The first calls of a client import many modules, which
takes about 1 s. An application may fork within this time, for example ``gunicorn --preload`` after a thread was started
that warms the client up.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any
from weakref import WeakSet

LONGEST = 10.0  # seconds that a fork waits for imports; a module may start a server that never ends
PAUSE = 0.01  # seconds between two looks
# The locks that a fork has waited for in vain. No later fork waits for them.
_endless: WeakSet[Any] = WeakSet()


class Imports:
    """The imports of other threads, for which one fork waits."""

    def __init__(self) -> None:
        self._until = time.monotonic() + LONGEST

    def are_going_on(self) -> bool:
        """Whether the fork should wait longer."""
        locks = _held_by_others()
        if locks and time.monotonic() < self._until:
            return True
        _endless.update(locks)
        return False


def _held_by_others() -> list[Any]:
    """The locks of the modules that other threads import. This thread's own imports go on in the child."""
    me = threading.get_ident()
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})
    found = [lock for reference in list(locks.values()) if (lock := reference()) is not None]
    return [lock for lock in found if getattr(lock, "owner", None) not in (None, me) and lock not in _endless]
