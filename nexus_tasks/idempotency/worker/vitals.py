"""The vital signs of one process: when its loops last turned. Reading them needs no server and no lock.

``/livez`` and the metrics read them. The threads of the worker write them: the heartbeat of leases, the background
steps (the sweep, reconcile and others), and the watchdog for the event loop of Celery's consumer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

# Seconds after which a loop that was asked to turn counts as stuck. The watchdog asks every 5 s, so a stuck consumer is
# seen within 25 s. An event loop that waits for a dead connection goes on after 5 s (``config.ANSWER_WITHIN``).
STUCK_AFTER = 20.0
CONSUMER = "consumer"  # the event loop of Celery's consumer
HEARTBEAT = "nexus-heartbeat"  # the thread that renews leases; it starts with the first job, or with a pool's child


class Vitals:
    """When the loops of one process last turned, by :func:`time.monotonic`. Each method is one step in any thread."""

    def __init__(self) -> None:
        self._turned: dict[str, float] = {}
        self._asked_at: float | None = None  # the oldest call that the consumer's loop has not made yet

    def turned(self, name: str) -> None:
        """Note that a loop has turned."""
        self._turned[name] = time.monotonic()

    def ended(self, name: str) -> None:
        """Forget a loop that was told to end."""
        self._turned.pop(name, None)

    def ask_consumer(self) -> None:
        """Note that the consumer's loop was asked to call :meth:`consumer_turned`."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def consumer_turned(self) -> None:
        """Note that the consumer's loop has turned, or that there is no loop to ask, as while the broker is away."""
        self._asked_at = None
        self.turned(CONSUMER)

    def ages(self) -> dict[str, float]:
        """Loop → seconds since it last turned."""
        now = time.monotonic()
        return {name: now - at for name, at in sorted(self._turned.copy().items())}

    def stuck(self, *, lease: float, children: Sequence[float] = ()) -> list[str]:
        """Sentences about loops that are stuck; empty while the process lives.

        A loop that waits for a server is not stuck: restarting the worker would not help.

        Args:
            lease: seconds.
            children: seconds since the heartbeats of the pool's children last turned.
        """
        found, asked, now = [], self._asked_at, time.monotonic()
        if asked is not None and now - asked > STUCK_AFTER:
            found.append(f"The event loop of the consumer has not turned for {now - asked:.0f} s.")
        longest = max(STUCK_AFTER, 3 * lease)
        beat = self.ages().get(HEARTBEAT, 0.0)
        if beat > longest:
            found.append(f"The heartbeat has renewed no lease for {beat:.0f} s.")
        if late := [age for age in children if age > longest]:
            found.append(f"In {len(late)} of the pool's processes no lease was renewed for {max(late):.0f} s.")
        return found
