"""One thread per worker process renews the leases of all its runs, three times per lease."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.binding import Binding, binding
from nexus_tasks.idempotency.claim import Claim

if TYPE_CHECKING:
    from nexus_tasks.idempotency.worker.run import Run

log = logging.getLogger(__name__)


class Heartbeat:
    """The claims whose runs are alive in this process, kept alive while they are held here."""

    def __init__(self, bound: Binding) -> None:
        self.pid = os.getpid()
        self._bound = bound
        self._held: dict[tuple[str, str], tuple[Claim, Run]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="nexus-heartbeat", daemon=True).start()

    def hold(self, run: Run, claims: Sequence[Claim]) -> None:
        """Keep ``claims`` of ``run`` alive from now on."""
        with self._lock:
            self._held |= {(claim.key, claim.token): (claim, run) for claim in claims}

    def let_go(self, claims: Sequence[Claim]) -> None:
        """Renew them no more: their run ends."""
        with self._lock:
            for claim in claims:
                self._held.pop((claim.key, claim.token), None)

    def _beat(self) -> None:
        pause = self._bound.lease / 3
        while True:
            time.sleep(pause)
            try:
                self._renew()
            except QueueUnavailable as error:
                # The leases may run out meanwhile; the sweep holds back one lease after Redis answers again.
                log.warning("Leases were not renewed: %s", error)
            except Exception:  # without this thread every run of the process would be taken for dead, for good
                log.exception("Leases were not renewed.")

    def _renew(self) -> None:
        with self._lock:
            held = dict(self._held)
        lost = self._bound.heartbeat_claims.renew([claim for claim, _ in held.values()], lease=self._bound.lease)
        self.let_go(lost)
        for claim in lost:
            _, run = held[claim.key, claim.token]
            if claim in run.claims:  # else it has ended meanwhile, as a part of its run
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
