"""The HTTP endpoint of a worker or of beat: ``/metrics``, ``/livez`` and ``/readyz``.

It runs in a thread of the main process. A child of a prefork pool needs no endpoint: what its runs did is counted in
Redis, in the same step that ends the run. So a count is right for every pool, and after a process was killed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from celery.worker import state

from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.worker import pool_children
from nexus_tasks.monitoring.definitions import METRICS, Sample, bounded, cumulative
from nexus_tasks.monitoring.sources import SHARED, buffer_of, refresh, sources_of

log = logging.getLogger(__name__)

PORTS = 16  # how many ports, from NEXUS_METRICS_PORT on, are tried: several workers may share a machine
Page = tuple[str, str, bytes]  # status, content type, body


class Monitor:
    """The metrics and the health of one process.

    Args:
        deployment: the deployment of the process.
        worker: Celery's worker; ``None`` in beat.
        shared: how old (seconds) figures may be that another process has read.
    """

    def __init__(self, deployment: Deployment, worker: Any = None, *, shared: float = SHARED) -> None:
        self.deployment, self.worker = deployment, worker
        self._sources = sources_of(deployment, shared=shared)
        self._buffer = buffer_of(deployment)

    def samples(self) -> list[Sample]:
        """All samples, at most 5 s old where the dependencies answer."""
        refresh([*self._sources, self._buffer])
        found = [one for source in (*self._sources, self._buffer) for one in source.samples]
        found += [
            Sample("nexus_dependency_up", (source.name,), 0.0 if source.fault else 1.0) for source in self._sources
        ]
        return bounded([*found, *self._of_process()])

    def _of_process(self) -> list[Sample]:
        engine = self.deployment.engine
        loops = engine.vitals.ages().items()
        found = [Sample("nexus_process_loop_age_seconds", (loop,), age) for loop, age in loops]
        pool: Any = self.deployment.database.engine.pool
        found.append(Sample("nexus_process_database_connections", (), pool.checkedout()))
        found.append(Sample("nexus_process_database_connections_max", (), self.deployment.database.most_connections))
        if self.worker is not None:
            if children := pool_children.ages(self.worker):
                found.append(Sample("nexus_process_pool_heartbeat_age_seconds", (), max(children)))
            slots = getattr(self.worker, "max_concurrency", None) or self.worker.pool.num_processes
            found.append(Sample("nexus_process_pool_slots", (), slots))
            found.append(Sample("nexus_process_pool_busy", (), len(state.active_requests)))
        return found

    def live(self) -> list[str]:
        """Why this process must be restarted; empty while it lives. Asks no server."""
        engine = self.deployment.engine
        return engine.vitals.stuck(lease=engine.limits.lease, children=pool_children.ages(self.worker))

    def ready(self) -> list[str]:
        """Why this process does no work now; empty while it works. A restart would not help."""
        refresh(self._sources)
        found = [f"{source.name}: {source.fault}" for source in self._sources if source.fault]
        if self.worker is not None:
            if not self.deployment.engine.breaker.closed():
                found.append("postgres: it takes no writes, so no job is begun.")
            consumer = getattr(self.worker, "consumer", None)
            if consumer is None or consumer.connection is None:
                found.append("broker: the consumer is not connected.")
            if any(code is not None and code is not False for code in (state.should_stop, state.should_terminate)):
                found.append("The worker shuts down.")
        return found

    # --- pages --------------------------------------------------------------------------------------------------------
    def page(self, path: str) -> Page:
        """The page of a path."""
        if path == "/metrics":
            return _metrics(self.samples())
        if path in ("/livez", "/readyz"):
            faults = self.live() if path == "/livez" else [*self.live(), *self.ready()]
            body = json.dumps({"ok": not faults, "faults": faults}).encode() + b"\n"
            return "503 Service Unavailable" if faults else "200 OK", "application/json", body
        return "404 Not Found", "text/plain", b"Pages: /metrics /livez /readyz\n"

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, as a WSGI application."""
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"Only GET.\n"
        else:
            status, kind, body = self.page(environ["PATH_INFO"])
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]


def _metrics(samples: Iterable[Sample]) -> Page:
    try:
        return "200 OK", "text/plain; version=0.0.4; charset=utf-8", text(samples).encode()
    except ImportError:
        remedy = b"Prometheus' client is missing: pip install 'nexus-tasks[metrics]'\n"
        return "501 Not Implemented", "text/plain", remedy


def text(samples: Iterable[Sample]) -> str:
    """The samples in Prometheus' text format.

    Raises:
        ImportError: ``prometheus-client`` is not installed.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric

    made = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    families: dict[str, Any] = {}
    for one in samples:
        kind, labels, about = METRICS[one.name]
        if one.name not in families:
            families[one.name] = made[kind](one.name, about, labels=labels)
        value = (cumulative(one), one.value) if kind == "histogram" else (one.value,)
        families[one.name].add_metric(one.labels, *value)

    class _Known:
        def collect(self) -> Iterable[Metric]:
            return families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Known())
    return generate_latest(registry).decode()


class Endpoint:
    """A running endpoint. ``port`` is the port that it has."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.port = int(server.server_port)
        # A child that the pool forks later must not keep the port open after the death of this process.
        os.register_at_fork(after_in_child=server.socket.close)
        self._thread = threading.Thread(target=server.serve_forever, name="nexus-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


def start(monitor: Monitor) -> Endpoint | None:
    """Serve the pages of a process at ``NEXUS_METRICS_PORT``, or at the next free one of 16 ports.

    Returns ``None`` when the setting is unset, or when no port can be used. The process goes on without the endpoint,
    and an error in the log says so.
    """
    settings = monitor.deployment.settings
    if settings.metrics_port is None:
        return None
    # Only here: the library imports modules that a fork server must not look for in the present folder.
    from nexus_tasks.monitoring.server import make

    host, first = settings.metrics_host, settings.metrics_port
    last = min(first + PORTS - 1, 65_535) if first else 0
    for port in range(first, last + 1):
        try:
            server = make(host, port, monitor)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port < last:
                continue
            log.error(
                "This process has no metrics and no health pages: %s:%d cannot be used (%s). Set NEXUS_METRICS_PORT to"
                " a port with free ports behind it, and NEXUS_METRICS_HOST to an address of this machine.",
                *(host, port, error.strerror or error),
            )
            return None
        endpoint = Endpoint(server)
        log.info("Metrics and health: http://%s:%d/metrics, /livez, /readyz", host, endpoint.port)
        return endpoint
    return None
