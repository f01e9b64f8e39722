"""The interpreter guard: ends a worker in which code blocks the interpreter, so that no other thread can run.

Python code lets other threads run every 5 ms. Code in C may keep the interpreter's lock (the GIL) for as long as it
runs, for example a regular expression that backtracks or arithmetic with huge numbers. No thread of the worker then
renews leases, takes messages, or handles SIGTERM. Therefore a timer of :mod:`faulthandler` is set again every second.
The timer is a thread in C, which needs no lock. When it runs out, it writes ``Timeout`` and the stack of every thread
to the standard error, and ends the process with exit code 1.

The time is the shutdown grace plus 10 s, and at most 60 s. By then the leases of the worker's runs (10 s) have ended,
so other workers have the jobs. A worker that was frozen for this long (SIGSTOP, a paused container) ends when it goes
on.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from contextlib import suppress

SET_EVERY = 1.0  # seconds
MARGIN = 10.0  # seconds after the shutdown grace
LONGEST = 60.0  # seconds
SHORTEST = 0.1  # seconds; faulthandler refuses 0


class InterpreterGuard:
    """Ends this process when its interpreter was blocked for ``grace`` plus 10 s, or for 60 s if that is less.

    Use it only where runs are threads of this process, because a forked child cannot use :mod:`faulthandler`'s timer.
    """

    def __init__(self, grace: float) -> None:
        self.seconds = min(grace + MARGIN, LONGEST)
        self._deadline = float("inf")
        self._stacks = -1  # the file descriptor that the stacks are written to

    def start(self) -> None:
        """Start the thread that sets the timer again. It goes on until the process ends."""
        try:
            # Not `sys.stderr`, where Celery has put a logger, which only Python code can write to.
            self._stacks = os.dup(sys.__stderr__.fileno())  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):  # the standard error is closed
            self._stacks = os.open(os.devnull, os.O_WRONLY)
        threading.Thread(target=self._set_again, name="nexus-interpreter-guard", daemon=True).start()

    def end_by(self, deadline: float) -> None:
        """End this process at ``deadline`` (of :func:`time.monotonic`), blocked or not. Infinity takes this back."""
        self._deadline = deadline

    def _set_again(self) -> None:
        while True:
            left = max(min(self.seconds, self._deadline - time.monotonic()), SHORTEST)
            with suppress(RuntimeError):  # no thread can be started now
                faulthandler.dump_traceback_later(left, exit=True, file=self._stacks)
            time.sleep(SET_EVERY)
