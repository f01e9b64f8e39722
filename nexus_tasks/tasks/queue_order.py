"""The order in which a worker reads its queues when the broker is Redis."""

from __future__ import annotations

from collections.abc import Sequence

from kombu.utils.scheduling import round_robin_cycle

OFTEN = "derive"  # the queue of derivations
IN_A_ROW = 4  # messages; this number was chosen by hand, not measured


class DerivationOften(round_robin_cycle):  # type: ignore[misc]
    """Round robin, except that the worker takes four messages from the derivation queue before one from another queue.

    Reflections and digests are made from derived facts. When derivation goes first, reflections and digests need fewer
    tokens and end earlier. Even during a long import, the other queues get one message of five. The setting
    ``broker_transport_options["queue_order_strategy"]`` names this class. With RabbitMQ this class is not used.
    """

    def __init__(self, it: Sequence[str] | None = None) -> None:
        super().__init__(it)
        self._in_a_row = 0

    def update(self, it: Sequence[str]) -> None:
        """Kombu calls this when the queues of the worker have changed."""
        super().update(sorted(it, key=lambda queue: queue != OFTEN))
        self._in_a_row = 0

    def rotate(self, last_used: str) -> str:
        """Kombu calls this when the worker has taken a message of ``last_used``."""
        if last_used == OFTEN and self._in_a_row + 1 < IN_A_ROW:
            self._in_a_row += 1
            return last_used
        super().rotate(last_used)
        self._in_a_row = 0
        if last_used != OFTEN and OFTEN in self.items:
            self.items.remove(OFTEN)
            self.items.insert(0, OFTEN)
        return last_used
