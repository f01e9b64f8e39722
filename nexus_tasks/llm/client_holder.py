"""Build a provider's client at its first call, and keep it for the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from nexus_tasks import forks

ClientT = TypeVar("ClientT")


class ClientHolder(Generic[ClientT]):
    """Builds and keeps the process's client.

    Threads may share the holder. After a fork, the child process builds a client of its own.

    Args:
        build: makes a client. It raises ``Misconfigured`` when it finds no credentials, or cannot use them.
    """

    def __init__(self, build: Callable[[], ClientT]) -> None:
        self._build = build
        self._inherited: list[ClientT] = []
        self._start_afresh()
        _holders.add(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._client: ClientT | None = None

    def after_fork(self) -> None:
        """Replace the client and the lock in a forked child, because a thread of the parent may have held the lock."""
        if self._client is not None:
            # This reference keeps the parent's client from garbage collection, which would take the lock of the
            # client's connection pool. A thread of the parent may have held that lock at the fork, so the child would
            # wait for ever.
            self._inherited.append(self._client)
        self._start_afresh()

    def get(self) -> ClientT:
        """The client, built at the first call.

        Raises:
            Misconfigured: there are no credentials, or they cannot be used.
        """
        client = self._client
        if client is not None:
            return client
        with self._lock:
            if self._client is None:
                self._client = self._build()
            return self._client

    def forget(self, client: ClientT) -> None:
        """Drop ``client`` after the API refused its credentials (401), so that the next call reads them again.

        ``client`` is not closed, because other threads may be using ``client``.
        """
        with self._lock:
            if self._client is client:
                self._client = None


_holders: WeakSet[ClientHolder[Any]] = WeakSet()


def _after_fork() -> None:
    for holder in list(_holders):
        holder.after_fork()


forks.after_in_child(_after_fork)
