"""Every metric of the endpoint: its type, labels and help text. ``docs/monitoring.md`` lists them.

A metric of the deployment is read from Redis, Postgres or the broker, so each process exports the same value: take the
``max`` of it, not the ``sum``. A metric of the process starts with ``nexus_process_``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """A value of a metric, with the values of its labels in the order of the metric's labels.

    Of a histogram ``value`` is the sum, and ``buckets`` are how many values are up to each bound of :data:`BOUNDS`, but
    not up to the bound before. The last bucket has those above all bounds.
    """

    name: str
    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...] = ()


# The bounds of the histograms, in seconds. `BOUNDS` in idempotency/lua/common.lua is the same list in ms.
BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3_600.0, 21_600.0, 86_400.0)


METRICS: dict[str, Metric] = {
    # the deployment, from Redis
    "nexus_claims": Metric("gauge", ("kind", "state"), "Jobs that have not ended: running, pending, waiting, in_line."),
    "nexus_waiting": Metric("gauge", ("reason",), "Jobs that wait, by the reason."),
    "nexus_line_length": Metric("gauge", ("rank", "namespace"), "Jobs in the lines of the namespaces with the most."),
    "nexus_oldest_pending_seconds": Metric("gauge", (), "Age of the oldest message that no worker has begun."),
    "nexus_overdue_seconds": Metric("gauge", ("what",), "How late the sweep is with due jobs, and ended leases."),
    "nexus_sweep_age_seconds": Metric("gauge", (), "Seconds since a worker of the deployment last swept."),
    "nexus_jobs_requested_total": Metric("counter", ("kind", "outcome"), "Requests for jobs; enqueued: new jobs."),
    "nexus_runs_begun_total": Metric("counter", ("kind",), "Runs that began."),
    "nexus_jobs_ended_total": Metric("counter", ("kind", "status"), "Jobs that ended; dead: dead letters."),
    "nexus_waits_total": Metric("counter", ("kind", "reason"), "Waits that began, without those in a line."),
    "nexus_retries_total": Metric("counter", ("kind",), "Failed runs that are tried again."),
    "nexus_crashes_total": Metric("counter", ("kind",), "Runs whose process died."),
    "nexus_messages_resent_total": Metric("counter", ("kind",), "Messages that were lost and sent again."),
    "nexus_jobs_restored_total": Metric("counter", ("kind",), "Jobs that Redis had lost and Postgres still wanted."),
    "nexus_run_seconds": Metric("histogram", ("kind",), "Duration of the runs that ended a job."),
    "nexus_wait_seconds": Metric("histogram", ("kind",), "Time from the request of a job to the start of each run."),
    "nexus_model_calls_total": Metric("counter", ("purpose", "model", "mode"), "Model calls; mode: live or batch."),
    "nexus_model_tokens_total": Metric("counter", ("purpose", "model", "type"), "Tokens of the model calls."),
    "nexus_model_cost_usd_total": Metric("counter", ("purpose", "model", "mode"), "Cost of the model calls."),
    "nexus_model_call_seconds_total": Metric("counter", ("purpose", "model"), "Duration of the live model calls."),
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
    "nexus_process_pool_heartbeat_age_seconds": Metric("gauge", (), "Age of the oldest heartbeat of a pool's process."),
    "nexus_process_database_connections": Metric("gauge", (), "Connections to Postgres that are in use."),
    "nexus_process_database_connections_max": Metric("gauge", (), "Connections to Postgres that may be in use."),
    "nexus_process_buffer_bytes": Metric("gauge", (), "Size of what this machine's session buffer waits to store."),
    "nexus_process_buffer_oldest_seconds": Metric("gauge", (), "Age of the oldest part of it."),
}

MOST_LABELS = 200  # samples of a metric of which the kinds, statuses or reasons come from a deployment's own code
OTHER = "other"


def bounded(samples: Iterable[Sample]) -> list[Sample]:
    """The samples, with those beyond 200 of a metric summed into one whose labels are ``other``."""
    kept: dict[str, list[Sample]] = {}
    rest: dict[str, Sample] = {}
    for one in samples:
        if len(some := kept.setdefault(one.name, [])) < MOST_LABELS:
            some.append(one)
            continue
        before = rest.get(one.name, Sample(one.name, (OTHER,) * len(one.labels), 0.0, (0,) * len(one.buckets)))
        buckets = tuple(a + b for a, b in zip(before.buckets, one.buckets, strict=True))
        rest[one.name] = before._replace(value=before.value + one.value, buckets=buckets)
    return [one for some in kept.values() for one in some] + list(rest.values())


def cumulative(sample: Sample) -> list[tuple[str, int]]:
    """The buckets of a histogram as Prometheus has them: each bound, and how many values are up to it."""
    names = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    return list(zip(names, accumulate(sample.buckets), strict=True))


def parts(sample: Sample) -> list[tuple[str, dict[str, str], float]]:
    """A sample as Prometheus has it: name, labels and value. A histogram has several."""
    labels = dict(zip(METRICS[sample.name].labels, sample.labels, strict=True))
    if METRICS[sample.name].kind != "histogram":
        return [(sample.name, labels, sample.value)]
    buckets = [(f"{sample.name}_bucket", {**labels, "le": le}, float(number)) for le, number in cumulative(sample)]
    count = float(sum(sample.buckets))
    return [*buckets, (f"{sample.name}_count", labels, count), (f"{sample.name}_sum", labels, sample.value)]
