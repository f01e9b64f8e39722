"""Every metric of the endpoint: its type, labels and help text. ``docs/monitoring.md`` lists them.

A metric of the deployment is read from Redis, Postgres or the broker, so each process exports the same value: take the
``max`` of it, not the ``sum``. A metric of the process starts with ``nexus_process_``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric."""

    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """A value of a metric, with the values of its labels in the order of the metric's labels."""

    name: str
    labels: tuple[str, ...]
    value: float


METRICS: dict[str, Metric] = {
    # the deployment, from Redis
    "nexus_claims": Metric("gauge", ("state",), "Jobs that have not ended: running, pending, waiting, in_line."),
    "nexus_oldest_pending_seconds": Metric("gauge", (), "Age of the oldest message that no worker has begun."),
    "nexus_runs_begun_total": Metric("counter", ("kind",), "Runs that began."),
    "nexus_jobs_ended_total": Metric("counter", ("kind", "status"), "Jobs that ended; dead: dead letters."),
    "nexus_waits_total": Metric("counter", ("kind", "reason"), "Waits that began; retry: a failed run is retried."),
    "nexus_crashes_total": Metric("counter", ("kind",), "Runs whose process died."),
    "nexus_messages_resent_total": Metric("counter", ("kind",), "Messages that were lost and sent again."),
    "nexus_run_seconds_total": Metric("counter", ("kind",), "Seconds that ended runs lasted."),
    "nexus_wait_seconds_total": Metric("counter", ("kind",), "Seconds from the request of a job to its runs' start."),
    "nexus_kind_paused": Metric("gauge", ("kind",), "1 for every job kind that is paused."),
    "nexus_held_threads": Metric("gauge", ("worker",), "Threads whose runs are over their limit and do not return."),
    "nexus_quarantined_messages": Metric("gauge", (), "Messages that no worker could read, since the beginning."),
    # the deployment, from Postgres
    "nexus_dead_letters": Metric("gauge", (), "Open dead letters, at most 100,001."),
    "nexus_wanted_derivations": Metric("gauge", (), "Derivations still to be done, at most 100,001."),
    "nexus_oldest_wanted_seconds": Metric("gauge", (), "Age of the oldest derivation still to be done, or 0."),
    # the deployment, from the broker
    "nexus_queued_messages": Metric("gauge", ("queue",), "Messages in each Celery queue."),
    # one namespace; only `nexus metrics` prints these
    "nexus_jobs": Metric("gauge", ("namespace", "state"), "Jobs by state; dead: open dead letters."),
    "nexus_memories": Metric("gauge", ("namespace", "level"), "Memories that are valid now, by level."),
    "nexus_underived_messages": Metric("gauge", ("namespace",), "Messages whose facts are still to be derived."),
    "nexus_oldest_underived_seconds": Metric("gauge", ("namespace",), "Age of the oldest derivation to be done."),
    "nexus_digests_wanted": Metric("gauge", ("namespace",), "Sessions that are still to be digested."),
    "nexus_reviews": Metric("gauge", ("namespace",), "Reflections that wait for a person's review."),
    "nexus_spend_today_usd": Metric("gauge", ("namespace",), "Cost of the model calls today (UTC), US dollars."),
    "nexus_model_calls_today": Metric("gauge", ("namespace",), "Model calls today (UTC)."),
    # the process
    "nexus_dependency_up": Metric("gauge", ("dependency",), "1 when the dependency answered this process last."),
    "nexus_process_loop_age_seconds": Metric("gauge", ("loop",), "Seconds since a loop of the process last turned."),
    "nexus_process_pool_slots": Metric("gauge", (), "Runs that the worker can have at a time."),
    "nexus_process_pool_busy": Metric("gauge", (), "Runs that the worker has."),
    "nexus_process_database_connections": Metric("gauge", (), "Connections to Postgres that are in use."),
    "nexus_process_buffer_pending": Metric("gauge", (), "1 while this machine's session buffer waits to be stored."),
}

MOST_LABELS = 200  # samples of a metric of which the kinds, statuses or reasons come from a deployment's own code
OTHER = "other"


def bounded(samples: Iterable[Sample]) -> list[Sample]:
    """The samples, with those beyond 200 of a metric summed into one whose labels are ``other``."""
    kept: dict[str, list[Sample]] = {}
    rest: dict[str, float] = {}
    for one in samples:
        if len(some := kept.setdefault(one.name, [])) < MOST_LABELS:
            some.append(one)
        else:
            rest[one.name] = rest.get(one.name, 0.0) + one.value
    every = [one for some in kept.values() for one in some]
    return every + [Sample(name, (OTHER,) * len(METRICS[name].labels), value) for name, value in rest.items()]
