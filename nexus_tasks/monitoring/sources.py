"""Reading the metrics of a deployment from Redis, Postgres and the broker, with few statements.

Each source is read in a thread of its own, at most every 5 s. A scrape waits for it for at most 2 s, and then gets what
was read last. So a scrape is cheap, and neither fails nor hangs while a server is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import text

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency import quarantine
from nexus_tasks.monitoring.definitions import METRICS, Sample
from nexus_tasks.services.status import queue_lengths
from nexus_tasks.storage import tenancy

log = logging.getLogger(__name__)

READ_EVERY = 5.0  # seconds
WAIT = 2.0  # seconds that a scrape waits for a source
MOST_ROWS = 100_001  # rows that a count reads at the most

_TOTALS = {
    "begun": ("nexus_runs_begun_total", 1.0),
    "ended": ("nexus_jobs_ended_total", 1.0),
    "waits": ("nexus_waits_total", 1.0),
    "crashes": ("nexus_crashes_total", 1.0),
    "resent": ("nexus_messages_resent_total", 1.0),
    "run_ms": ("nexus_run_seconds_total", 0.001),
    "wait_ms": ("nexus_wait_seconds_total", 0.001),
}
_ROWS = text(
    """
    SELECT (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE resolution IS NULL LIMIT :most) AS d),
           (SELECT count(*) FROM (SELECT 1 FROM derivations WHERE state = 'wanted' LIMIT :most) AS w),
           (SELECT extract(epoch FROM now() - created_at) FROM derivations WHERE state = 'wanted' ORDER BY id LIMIT 1)
    """
)


class Source:
    """One server's samples. Thread-safe.

    Args:
        name: the dependency's name.
        read: reads the samples. An error says that the dependency does not answer.
    """

    def __init__(self, name: str, read: Callable[[], Sequence[Sample]]) -> None:
        self.name = name
        self.samples: Sequence[Sample] = ()
        self.fault = "It was not asked yet."  # why it does not answer; empty when it answers
        self._read = read
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._done: threading.Event | None = None  # set when the reading that is under way ends

    def refresh(self) -> threading.Event | None:
        """Begin to read the samples, if they are old and no thread reads them. Returns the event of the reading."""
        with self._lock:
            if self._done is None and time.monotonic() - self._read_at >= READ_EVERY:
                self._done = threading.Event()
                name = f"nexus-metrics-{self.name}"
                threading.Thread(target=self._run, args=(self._done,), name=name, daemon=True).start()
            return self._done

    def late(self) -> None:
        """Note that the reading has not ended in time."""
        with self._lock:
            if self._done is not None:
                self.fault = f"It has not answered within {WAIT:g} s."

    def _run(self, done: threading.Event) -> None:
        fault, samples = "", None
        try:
            samples = self._read()
        except NexusError as error:
            fault = error.message
        except Exception as error:  # a scrape must not fail, whatever a driver raises
            log.exception("The metrics of %s could not be read.", self.name)
            fault = f"{type(error).__name__}."
        with self._lock:
            self.fault = fault
            self.samples = self.samples if samples is None else samples
            self._read_at, self._done = time.monotonic(), None
        done.set()


def sources_of(deployment: Deployment) -> list[Source]:
    """The sources of a deployment."""
    return [
        Source("redis", lambda: _redis(deployment)),
        Source("postgres", lambda: _postgres(deployment)),
        Source("broker", lambda: _broker(deployment)),
    ]


def refresh(sources: Sequence[Source]) -> None:
    """Read the sources that are due, and wait for them for at most 2 s together."""
    until = time.monotonic() + WAIT
    for source, done in [(source, source.refresh()) for source in sources]:
        if done is not None and not done.wait(max(until - time.monotonic(), 0.0)):
            source.late()


def _redis(deployment: Deployment) -> list[Sample]:
    claims = deployment.claims
    found = [Sample("nexus_claims", (state,), number) for state, number in claims.state_counts().items()]
    found.append(Sample("nexus_oldest_pending_seconds", (), claims.oldest_pending()))
    for field, number in sorted(claims.totals().items()):
        what, *labels = field.split("|", 2)
        name, unit = _TOTALS.get(what, ("", 0.0))
        if name and len(labels) == len(METRICS[name].labels):  # not so for a counter of a later release
            found.append(Sample(name, tuple(labels), number * unit))
    found += [Sample("nexus_kind_paused", (kind,), 1.0) for kind in claims.paused()]
    found += [Sample("nexus_held_threads", (worker,), held) for worker, (held, _) in claims.held_threads().items()]
    found.append(Sample("nexus_quarantined_messages", (), quarantine.count(claims)[1]))
    return found


def _postgres(deployment: Deployment) -> list[Sample]:
    with tenancy.unlimited(), deployment.database.reading() as tx:
        dead, underived, oldest = tx.execute(_ROWS, {"most": MOST_ROWS}).one()
    return [
        Sample("nexus_dead_letters", (), float(dead)),
        Sample("nexus_wanted_derivations", (), float(underived)),
        Sample("nexus_oldest_wanted_seconds", (), float(oldest or 0.0)),
    ]


def _broker(deployment: Deployment) -> list[Sample]:
    return [Sample("nexus_queued_messages", (queue,), n) for queue, n in sorted(queue_lengths(deployment).items())]
