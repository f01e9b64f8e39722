"""The order in which a worker reads its queues when the broker is Redis."""

from __future__ import annotations

from collections.abc import Sequence

from kombu.utils.scheduling import round_robin_cycle

from nexus_tasks.idempotency.request import URGENT

OFTEN = "derive"  # the queue of derivations
IN_A_ROW = 4  # messages; this number was chosen by hand, not measured


class DerivationOften(round_robin_cycle):  # type: ignore[misc]
    """Round robin with two exceptions, for urgent jobs and for derivations.

    A caller waits for an urgent job, so the worker takes an urgent message first. It takes no two in a row while
    another queue has messages, so that a flood of them stops no other work.

    The worker takes four messages from the derivation queue before one from another queue. Reflections and digests are
    made from derived facts. When derivation goes first, reflections and digests need fewer tokens and end earlier. Even
    during a long import, the other queues get one message of five.

    The setting ``broker_transport_options["queue_order_strategy"]`` names this class. With RabbitMQ this class is not
    used.
    """

    def __init__(self, it: Sequence[str] | None = None) -> None:
        super().__init__(it)
        self._in_a_row = 0

    def update(self, it: Sequence[str]) -> None:
        """Kombu calls this when the queues of the worker have changed."""
        super().update(sorted(it, key=lambda queue: (queue != URGENT, queue != OFTEN)))
        self._in_a_row = 0

    def rotate(self, last_used: str) -> str:
        """Kombu calls this when the worker has taken a message of ``last_used``."""
        if last_used == URGENT:
            super().rotate(last_used)
        else:
            self._rotate_others(last_used)
            self._put_first(URGENT)
        return last_used

    def _rotate_others(self, last_used: str) -> None:
        if last_used == OFTEN and self._in_a_row + 1 < IN_A_ROW:
            self._in_a_row += 1
            return
        super().rotate(last_used)
        self._in_a_row = 0
        if last_used != OFTEN:
            self._put_first(OFTEN)

    def _put_first(self, queue: str) -> None:
        if queue in self.items:
            self.items.remove(queue)
            self.items.insert(0, queue)
