"""Which servers are silent. A few calls wait for a silent Postgres or Redis, and the others are refused at once.

Otherwise the calls of one silent server would hold every thread of a process, and all other calls would wait, such as
those of other cells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeGuard, TypeVar

from nexus_tasks.errors import QueueUnavailable, StorageMisconfigured, StorageUnavailable

T = TypeVar("T")
Outage = StorageUnavailable | QueueUnavailable

_SLOW = 1.0  # seconds; a transaction that fails later than this has waited for a silent server
_PAUSE = 1.0  # seconds between a failed call of a silent server and the next one
_LEASE = 10.0  # seconds for which one caller tries a silent server alone; its first transaction ends this
_REMEMBERED = 10.0  # seconds after the time of the next try; without a try until then, the server counts as back


class Silence:
    """The silent servers, as the transactions of this process have found them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent = dict[str, tuple[float, Outage]]()  # server → when it may be tried again, and why it is away
        self._answered = dict[str, float]()  # server → when it has answered last

    def ask(self, server: str, call: Callable[[], T], *, instead: Callable[[], T] | None = None) -> T:
        """Ask a server. The call notes what it has found with :meth:`note`.

        Args:
            server: the name of the server, such as that of a cell.
            call: asks it.
            instead: called when the server is silent, and another caller tries it or has just tried it.

        Raises:
            StorageUnavailable, QueueUnavailable: the server is silent, and there is no ``instead``.
            any error of ``call``.
        """
        now = time.monotonic()
        with self._lock:
            known = self._silent.get(server)
            if known and now - known[0] >= _REMEMBERED:
                del self._silent[server]
                known = None
            tries = known is None or now >= known[0]
            if tries and known:
                trying = self._silent[server] = now + _LEASE, known[1]
        if known is None:
            return call()
        if not tries:
            if instead is not None:
                return instead()
            error = known[1]
            raise (QueueUnavailable if isinstance(error, QueueUnavailable) else StorageUnavailable)(error.message)
        try:
            return call()
        finally:
            with self._lock:
                if self._silent.get(server) is trying:  # the call has failed before it asked the server
                    self._silent[server] = known

    def holds(self, server: str) -> bool:
        """Whether a server is silent."""
        return server in self._silent

    def note(self, server: str, begun: float, error: Exception | None) -> None:
        """Note how a transaction of a server has ended.

        Only waiting for the server is silence. A call may also take long for its own sake, or wait for another one.

        Args:
            server: the name of the server.
            begun: ``time.monotonic`` of the transaction's start.
            error: the error of the server that ended it. ``None``: the server has answered.
        """
        if error is None:
            with self._lock:
                self._answered[server] = time.monotonic()
                self._silent.pop(server, None)
        elif _is_outage(error):
            ended = time.monotonic()
            with self._lock:
                if self._answered.get(server, float("-inf")) > begun:
                    return  # only this connection was silent, or the server is back
                if server in self._silent or ended - begun >= _SLOW:
                    self._silent[server] = ended + _PAUSE, error


def _is_outage(error: Exception) -> TypeGuard[Outage]:
    if isinstance(error, StorageUnavailable):
        return error.outage and not isinstance(error, StorageMisconfigured)
    return isinstance(error, QueueUnavailable)
