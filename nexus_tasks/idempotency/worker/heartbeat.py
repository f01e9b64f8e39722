"""The heartbeat: one thread of a process renews the leases of all jobs that the process runs, three times per lease.

A lease belongs to a claim, the record of a job in Redis.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.worker import pool_children
from nexus_tasks.idempotency.worker.vitals import HEARTBEAT, Vitals

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews the leases of the claims that runs of this process hold.

    Its thread starts with the first such claim, or with :meth:`start`.

    Args:
        claims: the claims, through a Redis client whose socket timeout is shorter than a third of a lease.
        lease: seconds that a running claim stays valid without a renewal.
        each_beat: called before each renewal.
        vitals: where the thread notes each of its turns.
    """

    def __init__(
        self,
        claims: Claims,
        lease: float,
        each_beat: Callable[[], None] = lambda: None,
        vitals: Vitals | None = None,
    ) -> None:
        self._vitals = vitals or Vitals()
        self._claims, self._lease, self._each_beat = claims, lease, each_beat
        self._held: dict[tuple[str, str], tuple[Claim, Callable[[Claim], None]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread now. A pool's child does so, because `/livez` watches its heartbeat from then on."""
        with self._lock:
            self._start()

    def hold(self, claims: Sequence[Claim], on_lost: Callable[[Claim], None]) -> None:
        """Renew ``claims`` from now on; ``on_lost`` is called with each claim that the run has lost."""
        with self._lock:
            self._held |= {(claim.key, claim.token): (claim, on_lost) for claim in claims}
            self._start()

    def let_go(self, claims: Sequence[Claim]) -> None:
        """Stop renewing ``claims``, because their run ends."""
        with self._lock:
            for claim in claims:
                self._held.pop((claim.key, claim.token), None)

    def stop(self) -> None:
        """End the thread. Leases that are still held end by themselves."""
        self._stopped.set()

    def _start(self) -> None:
        if self._thread is None:
            pool_children.note_turn()  # a child that is stuck before the first turn is seen too
            self._thread = threading.Thread(target=self._beat, name=HEARTBEAT, daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(self._lease / 3):
            self._vitals.turned(HEARTBEAT)
            pool_children.note_turn()
            try:
                self._each_beat()
                self._renew()
            except QueueUnavailable as error:
                # The leases may end meanwhile. But the sweep (the loop that takes claims from dead processes) takes no
                # claim for its ended lease until Redis has answered for as long as a lease.
                log.warning("Leases were not renewed: %s", error)
            except Exception:  # the thread must go on, because otherwise every run of this process loses its lease
                log.exception("Leases were not renewed.")
        self._vitals.ended(HEARTBEAT)

    def _renew(self) -> None:
        with self._lock:
            held = dict(self._held)
        lost = self._claims.renew([claim for claim, _ in held.values()], lease=self._lease)
        self.let_go(lost)
        for claim in lost:
            _, on_lost = held[claim.key, claim.token]
            on_lost(claim)
