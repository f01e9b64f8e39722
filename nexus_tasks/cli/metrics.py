"""``nexus metrics``: figures of queue and memory for a monitoring system, in Prometheus' text format.

All metrics are gauges, because each command is a new process, in which a counter would start at 0. Finished runs have
no metric: ``nexus jobs finished`` counts them from the table ``job_runs``, whose rows are deleted after 30 days.

A counter in a worker process belongs in ``_finish`` in ``idempotency/worker/executor.py``. It would count jobs that
ended, not runs: ``_finish`` is called once per settled part of a batch, with the claims (one per job) of this part. It
is not called for a job that waits for its next attempt, or for a dead letter that the sweep (a loop of every worker)
writes. A run in a child process, of a prefork pool or of the fork server, would count in this child.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nexus_tasks.cli.connect import connect
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.types import StatusReport

# Each metric with its labels and its help text.
_METRICS = {
    "nexus_jobs": (("namespace", "state"), "Jobs by state; dead: open dead letters."),
    "nexus_memories": (("namespace", "level"), "Memories that are valid now, by level."),
    "nexus_underived_messages": (("namespace",), "Messages whose facts are still to be derived."),
    "nexus_oldest_underived_seconds": (("namespace",), "Age of the oldest derivation still to be done, or 0."),
    "nexus_digests_wanted": (("namespace",), "Sessions that are still to be digested."),
    "nexus_reviews": (("namespace",), "Reflections that wait for a person's review."),
    "nexus_spend_today_usd": (("namespace",), "Cost of the model calls today (UTC), US dollars."),
    "nexus_model_calls_today": (("namespace",), "Model calls today (UTC)."),
    "nexus_kind_paused": (("kind",), "1 for every job kind that is paused."),
    "nexus_held_threads": (
        ("worker",),
        "Threads whose runs are over their time limit and do not return; only workers with such threads.",
    ),
    "nexus_queued_messages": (("queue",), "Messages in each Celery queue."),
    "nexus_quarantined_messages": ((), "Messages that no worker could read, since the deployment began."),
}

EVERY = 1_000_000  # namespaces
Sample = tuple[str, tuple[str, ...], float]


def metrics(json: Json = False) -> None:
    """Print figures of queue and memory for Prometheus, for example for node_exporter's textfile collector."""
    client = connect()
    from nexus_tasks.idempotency import quarantine
    from nexus_tasks.services.status import queue_lengths, status

    _, moved = quarantine.count(client.deployment.claims)
    # `Nexus.status` gives a page of the namespaces, and refuses a client that is limited to several of them.
    report = status(client.deployment, None, limit=EVERY) if client.limit is None else client.status()
    samples = [
        *_samples(report, queue_lengths(client.deployment)),
        ("nexus_quarantined_messages", (), float(moved)),
    ]
    if json:
        named = [(name, dict(zip(_METRICS[name][0], labels, strict=True)), value) for name, labels, value in samples]
        emit({"metrics": [{"name": name, "labels": labels, "value": value} for name, labels, value in named]})
        return
    print(_text(samples), end="")


def _samples(status: StatusReport, queues: Mapping[str, int]) -> Iterable[Sample]:
    for one in status.namespaces:
        namespace = one.namespace
        yield from (("nexus_jobs", (namespace, state), count) for state, count in one.jobs.to_dict().items())
        yield from (("nexus_memories", (namespace, level), count) for level, count in one.memories.items())
        yield "nexus_underived_messages", (namespace,), one.underived
        yield "nexus_oldest_underived_seconds", (namespace,), one.oldest_underived_seconds or 0.0
        yield "nexus_digests_wanted", (namespace,), one.digests_wanted
        yield "nexus_reviews", (namespace,), len(one.reviews)
        yield "nexus_spend_today_usd", (namespace,), one.spend_today_usd
        yield "nexus_model_calls_today", (namespace,), one.model_calls_today
    yield from (("nexus_kind_paused", (paused.kind,), 1.0) for paused in status.paused)
    yield from (("nexus_held_threads", (hung.worker,), float(hung.held)) for hung in status.held_threads)
    yield from (("nexus_queued_messages", (queue,), float(count)) for queue, count in sorted(queues.items()))


def _text(samples: Iterable[Sample]) -> str:
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ImportError:
        raise ConfigurationError(
            "Prometheus' format needs its client library.",
            remedy="Install it with `pip install 'nexus-tasks[metrics]'`, or use --json.",
        ) from None
    registry = CollectorRegistry()
    gauges = {name: Gauge(name, about, labels, registry=registry) for name, (labels, about) in _METRICS.items()}
    for name, labels, value in samples:
        (gauges[name].labels(*labels) if labels else gauges[name]).set(value)
    return generate_latest(registry).decode()
