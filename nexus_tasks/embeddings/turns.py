"""Turns of threads that compute for long."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType


class Turns:
    """A lock that threads get in the order in which they ask for it.

    A thread that works for long calls :meth:`pass_on` now and then. Otherwise a thread with little to do waits until
    all others have finished.

    Args:
        seconds: how long a thread works until :meth:`pass_on` lets the next thread work.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Forget the threads, for a forked child, which lacks them."""
        self._guard = threading.Lock()
        self._waiting = deque[threading.Lock]()
        self._taken = False
        self._holder: int | None = None
        self._began = 0.0

    def __enter__(self) -> None:
        with self._guard:
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
            if not self._taken or self._holder == threading.get_ident():  # a signal has interrupted its __exit__
                self._hand_on()
        try:
            mine.acquire()  # another thread's __exit__ releases it
        except BaseException:  # a signal's handler raised an error
            with self._guard:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                else:
                    self._hand_on()
            raise
        self._holder, self._began = threading.get_ident(), time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._guard:
            if self._holder == threading.get_ident():  # not after an error in pass_on
                self._hand_on()

    def pass_on(self) -> None:
        """Let the threads that wait work first, if this thread has worked for long enough."""
        if self._waiting and time.monotonic() - self._began > self._seconds:
            self.__exit__(None, None, None)
            self.__enter__()

    def _hand_on(self) -> None:
        self._holder, self._taken = None, bool(self._waiting)
        if self._waiting:
            self._waiting.popleft().release()
