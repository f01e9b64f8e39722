"""Message Batches: submitted, in progress for as long as the test wants, then results in another order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.standin.ledger import Call

Result = dict[str, Any]


@dataclass
class Batch:
    """One batch: its calls by custom id, and its results once it has ended."""

    id: str
    calls: dict[str, Call]
    ends_at: float | None  # monotonic; None: when the test says so
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    cancelled: datetime | None = None
    ended: datetime | None = None
    results: dict[str, Result] = field(default_factory=dict)

    def as_dict(self, url: str) -> dict[str, Any]:
        """The API's ``message_batch``."""
        kinds = ("canceled", "errored", "expired", "succeeded")
        counts = {kind: sum(result["type"] == kind for result in self.results.values()) for kind in kinds}
        in_progress = "canceling" if self.cancelled else "in_progress"
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": "ended" if self.ended else in_progress,
            "request_counts": {"processing": 0 if self.ended else len(self.calls), **counts},
            "created_at": self.created.isoformat(),
            "expires_at": (self.created + timedelta(hours=24)).isoformat(),
            "ended_at": self.ended and self.ended.isoformat(),
            "cancel_initiated_at": self.cancelled and self.cancelled.isoformat(),
            "archived_at": None,
            "results_url": f"{url}/v1/messages/batches/{self.id}/results" if self.ended else None,
        }


class Batches:
    """All batches of a stand-in. ``work`` makes the result of one call."""

    def __init__(self, work: Callable[[Call], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._all: dict[str, Batch] = {}

    def create(self, items: dict[str, dict[str, Any]], delay: float | None) -> Batch:
        """Take a batch that ends ``delay`` seconds from now, or when the test says so (``None``)."""
        with self._lock:
            name = f"msgbatch_{next(self._numbers):04}"
            ends_at = None if delay is None else time.monotonic() + delay
            calls = {custom_id: Call(params, batch=name) for custom_id, params in items.items()}
            batch = self._all[name] = Batch(name, calls, ends_at)
            return batch

    def get(self, name: str) -> Batch | None:
        """A batch, ended if its time has come."""
        with self._lock:
            batch = self._all.get(name)
            if batch and batch.ended is None and batch.ends_at is not None and batch.ends_at <= time.monotonic():
                self._end(batch)
            return batch

    def end(self, name: str | None = None) -> None:
        """End one batch, or all, now."""
        with self._lock:
            for batch in [self._all[name]] if name else list(self._all.values()):
                if batch.ended is None:
                    self._end(batch)

    def cancel(self, name: str) -> Batch | None:
        """Cancel: what is not done by the next look at it is cancelled."""
        batch = self.get(name)
        if batch and batch.ended is None:
            batch.cancelled, batch.ends_at = datetime.now(UTC), time.monotonic()
        return batch

    def delete(self, name: str) -> None:
        """Forget a batch."""
        with self._lock:
            self._all.pop(name, None)

    def newest_first(self) -> list[Batch]:
        """All batches."""
        with self._lock:
            names = list(self._all)
        return [batch for name in reversed(names) if (batch := self.get(name))]

    def _end(self, batch: Batch) -> None:
        for custom_id, call in reversed(batch.calls.items()):
            batch.results[custom_id] = {"type": "canceled"} if batch.cancelled else self._work(call)
        batch.ended = datetime.now(UTC)
