"""One thread per worker process renews the leases of all its runs, three times per lease."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.binding import Binding, binding

if TYPE_CHECKING:
    from nexus_tasks.idempotency.run import Run

log = logging.getLogger(__name__)


class Heartbeat:
    """The runs of this process, kept alive while they are listed here."""

    def __init__(self, bound: Binding) -> None:
        self.pid = os.getpid()
        self._bound = bound
        self._by_id: dict[int, Run] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="nexus-heartbeat", daemon=True).start()

    def add(self, run: Run) -> None:
        """Keep every claim of ``run`` alive from now on; again after it has taken siblings is fine."""
        with self._lock:
            self._by_id[id(run)] = run

    def remove(self, run: Run) -> None:
        """Let go of ``run``."""
        with self._lock:
            self._by_id.pop(id(run), None)

    def _beat(self) -> None:
        pause = self._bound.lease / 3
        while True:
            time.sleep(pause)
            with self._lock:
                runs = list(self._by_id.values())
            if not runs:
                continue
            try:
                self._renew(runs)
            except QueueUnavailable as error:
                # The leases may run out meanwhile; the sweep holds back one lease after Redis answers again.
                log.warning("Leases were not renewed: %s", error)

    def _renew(self, runs: list[Run]) -> None:
        holders = [
            (run, claim, request) for run in runs for claim, request in zip(run.claims, run.requests, strict=True)
        ]
        lost = self._bound.heartbeat_claims.renew([(c, r) for _, c, r in holders], lease=self._bound.lease)
        gone = {(claim.key, claim.token) for claim in lost}
        for run, claim, _ in holders:
            if (claim.key, claim.token) in gone:
                run.lost.set()


_heartbeat: Heartbeat | None = None
_starting = threading.Lock()


def heartbeat() -> Heartbeat:
    """This process's heartbeat, started on first use: a forked child starts its own."""
    global _heartbeat
    with _starting:
        if _heartbeat is None or _heartbeat.pid != os.getpid():
            _heartbeat = Heartbeat(binding())
        return _heartbeat
