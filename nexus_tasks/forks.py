"""What a forked child forgets of its parent.

Python calls the functions of ``os.register_at_fork`` when it forks. uWSGI forks its workers without Python, so Python
calls none of them. Without :func:`check` all workers would use the connections that the application has made before.
They would read each other's answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_forgetting: list[Callable[[], object]] = []
_pid = os.getpid()  # of the process that called the functions last, or that has not been forked
_lock = threading.RLock()


def after_in_child(forget: Callable[[], object]) -> None:
    """Call ``forget`` in each forked child, before the child uses a connection, lock or thread of its parent."""
    _forgetting.append(forget)


def check() -> None:
    """Call the functions of :func:`after_in_child` if this process was forked without them.

    Every use of a deployment's connections calls this.
    """
    if _pid != os.getpid():
        with _lock:
            if _pid != os.getpid():
                _forget()


def _forget() -> None:
    global _pid
    for forget in _forgetting:
        forget()
    _pid = os.getpid()  # last, so that other threads wait


def _forked() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held the lock
    _forget()


os.register_at_fork(after_in_child=_forked)
