"""Runs that stop while their model "thinks", and go on when a test says so: every interleaving, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE = 120.0  # seconds after which a run that neither asks nor ends is a failure


class Crash(BaseException):
    """The worker dies."""


class Suspended:
    """A run in a thread of its own. It moves only inside :meth:`go_on`, until it asks its model or ends."""

    def __init__(self, do: Callable[[Suspended], object]) -> None:
        """``do`` is called with this; it calls :meth:`asks` where its model would think, :meth:`alive` to commit."""
        self.ended = False
        self._doomed = self._silent = False
        self._error: BaseException | None = None
        self._may, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(do,), daemon=True)
        self._thread.start()
        self.go_on()

    def _run(self, do: Callable[[Suspended], object]) -> None:
        self._may.acquire()
        try:
            do(self)
        except Crash:
            pass
        except BaseException as error:
            self._error = error
        self.ended = True
        self._stopped.release()

    def asks(self) -> None:
        """Wait for the answer; a run that dies before it never gets it, one that dies after it asks nothing more."""
        if self._doomed:
            raise Crash
        self._stopped.release()
        self._may.acquire()
        if self._doomed and self._silent:
            raise Crash

    def alive(self) -> None:
        """A run that dies with its answer dies here, before it commits."""
        if self._doomed:
            raise Crash

    def go_on(self) -> None:
        """Let it move to its next question or to its end.

        Raises:
            whatever the run raised, other than :class:`Crash`.
        """
        self._may.release()
        assert self._stopped.acquire(timeout=PATIENCE), "neither asks nor ends"
        if self.ended:
            self._thread.join(PATIENCE)
        if self._error:
            raise self._error

    def die(self, *, answered: bool) -> None:
        """Kill it where it stands: before its answer has come, or just after."""
        self._doomed, self._silent = True, not answered
        self.go_on()
        assert self.ended
