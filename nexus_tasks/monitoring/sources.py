"""Reading the metrics of a deployment from Redis, Postgres and the broker, with few statements.

Each source is read in a thread of its own, at most every 5 s. A scrape waits for it for at most 2 s, and then gets what
was read last. So a scrape is cheap, and neither fails nor hangs while a server is away.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import text

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency import quarantine
from nexus_tasks.monitoring.definitions import BOUNDS, METRICS, Sample
from nexus_tasks.services.status import queue_lengths
from nexus_tasks.storage import tenancy

log = logging.getLogger(__name__)

READ_EVERY = 5.0  # seconds
WAIT = 2.0  # seconds that a scrape waits for a source
MOST_ROWS = 100_001  # rows that a count reads at the most

SHARED = 4.0  # seconds for which processes share figures that cost Redis more than a few commands
LONGEST = 10  # how many of the longest lines are shown

# The first part of a counter's name in Redis, the metric, and the unit.
_TOTALS = {
    "asked": ("nexus_jobs_requested_total", 1.0),
    "ended": ("nexus_jobs_ended_total", 1.0),
    "waits": ("nexus_waits_total", 1.0),
    "retries": ("nexus_retries_total", 1.0),
    "crashes": ("nexus_crashes_total", 1.0),
    "resent": ("nexus_messages_resent_total", 1.0),
    "restored": ("nexus_jobs_restored_total", 1.0),
    "calls": ("nexus_model_calls_total", 1.0),
    "tokens": ("nexus_model_tokens_total", 1.0),
    "cost_nano_usd": ("nexus_model_cost_usd_total", 1e-9),
    "call_ms": ("nexus_model_call_seconds_total", 1e-3),
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


def sources_of(deployment: Deployment, *, shared: float = SHARED) -> list[Source]:
    """The sources of a deployment. Figures that another process has read up to ``shared`` seconds ago are taken."""
    return [
        Source("redis", lambda: _redis(deployment, shared)),
        Source("postgres", lambda: _postgres(deployment)),
        Source("broker", lambda: _broker(deployment)),
    ]


def refresh(sources: Sequence[Source]) -> None:
    """Read the sources that are due, and wait for them for at most 2 s together."""
    until = time.monotonic() + WAIT
    for source, done in [(source, source.refresh()) for source in sources]:
        if done is not None and not done.wait(max(until - time.monotonic(), 0.0)):
            source.late()


def _redis(deployment: Deployment, shared: float) -> list[Sample]:
    claims = deployment.claims
    found = counters(claims.totals())
    figures = claims.figures(max_age=shared, longest=LONGEST)
    found += _claims(figures, found, named=deployment.settings.metrics_namespaces)
    found += [Sample("nexus_kind_paused", (kind,), 1.0) for kind in claims.paused()]
    found += [Sample("nexus_held_threads", (worker,), held) for worker, (held, _) in claims.held_threads().items()]
    found.append(Sample("nexus_quarantined_messages", (), quarantine.count(claims)[1]))
    return found


def _claims(figures: Mapping[str, Any], known: Sequence[Sample], *, named: bool) -> list[Sample]:
    """What ``lua/figures.lua`` has counted; 0 for kinds and reasons that only the counters know.

    Args:
        known: the counters.
        named: whether namespaces are named.
    """

    def since(moment: str) -> float:
        return max(0.0, (figures["now"] - figures[moment]) / 1000) if figures.get(moment) else 0.0

    claims, waiting = figures["claims"], figures["waiting"]
    kinds = {one.labels[0] for one in known if one.name == "nexus_jobs_requested_total"}.union(*claims.values())
    reasons = {one.labels[1] for one in known if one.name == "nexus_waits_total"}.union(waiting)
    found = [
        Sample("nexus_claims", (kind, state), claims[state].get(kind, 0))
        for kind in sorted(kinds)
        for state in sorted(claims)
    ]
    found += [Sample("nexus_waiting", (reason,), waiting.get(reason, 0)) for reason in sorted(reasons)]
    if figures.get("swept_at"):
        found.append(Sample("nexus_sweep_age_seconds", (), since("swept_at")))
    for rank, (namespace, number) in enumerate(figures["lines"] or (), start=1):
        found.append(Sample("nexus_line_length", (str(rank), namespace if named else ""), number))
    return [
        *found,
        Sample("nexus_oldest_pending_seconds", (), since("oldest_pending")),
        Sample("nexus_overdue_seconds", ("due",), since("oldest_due")),
        Sample("nexus_overdue_seconds", ("lease",), since("oldest_lease")),
    ]


def counters(totals: Mapping[str, int]) -> list[Sample]:
    """The counters that Redis has, as samples. A counter of a later release is left out."""
    found = []
    sums: dict[tuple[str, str], float] = {}
    buckets: dict[tuple[str, str], list[int]] = {}
    for field, number in sorted(totals.items()):
        what, _, rest = field.partition("|")
        name, unit = _TOTALS.get(what, ("", 0.0))
        if name:
            labels = tuple(rest.split("|", len(METRICS[name].labels) - 1))
            if len(labels) == len(METRICS[name].labels):
                found.append(Sample(name, labels, number * unit))
        elif what in ("run_ms", "wait_ms"):
            sums[what[:-3], rest] = number / 1000
        elif what in ("run_le", "wait_le"):
            kind, _, bound = rest.rpartition("|")
            place = len(BOUNDS) if bound == "inf" else bisect_left(BOUNDS, int(bound) / 1000)
            buckets.setdefault((what[:-3], kind), [0] * (len(BOUNDS) + 1))[place] += number
    for (what, kind), counts in buckets.items():
        found.append(Sample(f"nexus_{what}_seconds", (kind,), sums.get((what, kind), 0.0), tuple(counts)))
        if what == "wait":  # every run that begins has waited
            found.append(Sample("nexus_runs_begun_total", (kind,), sum(counts)))
            if f"crashes|{kind}" not in totals:  # from 0 on, because no `increase` has a counter's first value
                found.append(Sample("nexus_crashes_total", (kind,), 0.0))
    return found


def buffer_of(deployment: Deployment) -> Source:
    """The session buffer of this machine. It is no dependency."""

    def read() -> list[Sample]:
        size, oldest = deployment.buffer.backlog()
        age = max(0.0, time.time() - oldest) if oldest else 0.0
        return [
            Sample("nexus_process_buffer_bytes", (), size),
            Sample("nexus_process_buffer_oldest_seconds", (), age),
        ]

    return Source("buffer", read)


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
