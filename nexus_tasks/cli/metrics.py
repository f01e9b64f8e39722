"""``nexus metrics``: the metrics of the deployment once, and figures by namespace, in Prometheus' text format.

``monitoring/definitions.py`` has the definitions. The pages that workers serve over HTTP have no figure by namespace.
"""

from __future__ import annotations

from collections.abc import Iterable

from nexus_tasks.cli.connect import connect, one_deployment
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.monitoring.definitions import Sample, parts
from nexus_tasks.types import StatusReport

EVERY = 1_000_000  # namespaces


def metrics(json: Json = False) -> None:
    """Print figures of queue and memory for Prometheus, for example for node_exporter's textfile collector."""
    client = connect()
    from nexus_tasks.monitoring.endpoint import Monitor
    from nexus_tasks.services.status import status

    of_deployment: Iterable[Sample] = ()
    if client.limit is None:
        deployment = one_deployment(client)
        # `Nexus.status` gives a page of the namespaces, and refuses a client that is limited to several of them.
        report = status(deployment, None, limit=EVERY)
        of_deployment = Monitor(deployment, shared=0.0).samples()
    else:
        report = client.status()
    samples = [Sample(*one) for one in _samples(report)]
    samples += [one for one in of_deployment if not one.name.startswith("nexus_process_")]
    if json:
        each = [part for one in samples for part in parts(one)]
        emit({"metrics": [{"name": name, "labels": labels, "value": value} for name, labels, value in each]})
        return
    print(_text(samples), end="")


def _samples(status: StatusReport) -> Iterable[tuple[str, tuple[str, ...], float]]:
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


def _text(samples: Iterable[Sample]) -> str:
    from nexus_tasks.monitoring.endpoint import text

    try:
        return text(samples)
    except ImportError:
        raise ConfigurationError(
            "Prometheus' format needs its client library.",
            remedy="Install it with `pip install 'nexus-tasks[metrics]'`, or use --json.",
        ) from None
