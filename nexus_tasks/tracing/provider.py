"""Where spans go: to the application's tracer provider, or to the exporter that the ``OTEL_*`` variables name.

An application that uses OpenTelemetry itself has set a tracer provider, and our spans go there. Otherwise this module
makes a provider of its own, if ``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT`` or
``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` is set. OpenTelemetry's SDK reads all other ``OTEL_*`` variables.

The own provider is made with the first span of a process, so after the fork of a pool's child. A thread of its own
sends the spans, and no job waits for it. While the collector is away, the newest 2,048 spans are kept, the others lost.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any

from nexus_tasks import forks

log = logging.getLogger(__name__)

FLUSH_WITHIN = 2.0  # seconds that the end of a process waits for its last spans to be sent
NAME = "nexus-tasks"  # the service's name without OTEL_SERVICE_NAME
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class _OwnProvider:
    """The provider that this process makes from the variables. All deployments of the process share it."""

    def __init__(self) -> None:
        self.made: Any = None
        self._wanted = _names_an_exporter()
        self._lock = threading.Lock()
        self._inherited: list[Any] = []

    def get(self) -> Any:
        """The provider, or ``None`` without an exporter. When it cannot be made, a warning is logged once."""
        if self.made is not None or not self._wanted:
            return self.made
        with self._lock:
            # Until the provider is made, other threads must come to the lock, or their spans would be lost.
            if self.made is None and self._wanted:
                try:
                    self.made = _make()
                except ImportError:
                    log.warning("No span is exported: install the SDK with `pip install 'nexus-tasks[otel]'`.")
                except Exception as error:  # no job may fail for a wrong variable, whatever an exporter raises
                    log.warning("No span is exported: %s. Correct the OTEL_* variables.", error)
                else:
                    atexit.register(flush)
                self._wanted = self.made is not None
            return self.made

    def after_fork(self) -> None:
        """Forget the parent's provider, without deleting it: it has an open socket. The next span makes another one."""
        if self.made is not None:
            self._inherited.append(self.made)
            atexit.unregister(flush)
        self.made, self._wanted, self._lock = None, _names_an_exporter(), threading.Lock()


def tracer() -> Any:
    """The tracer that collects our spans, or ``None`` when nothing collects spans."""
    provider = _of_the_application() or _own.get()
    if provider is None:
        return None
    try:
        return _tracers[provider]
    except KeyError:  # also when another thread has just emptied it
        found = _tracer_of(provider)
    _tracers.clear()
    _tracers[provider] = found
    return found


def flush(within: float = FLUSH_WITHIN) -> None:
    """Have the spans sent that are not sent yet. After ``within`` seconds this function returns in any case."""
    provider = _of_the_application() or _own.made
    if provider is None or not hasattr(provider, "force_flush"):
        return
    # The SDK ignores the time limit of `force_flush`, so a thread waits for it.
    thread = threading.Thread(target=provider.force_flush, name="nexus-flush-spans", daemon=True)
    with suppress(RuntimeError):  # the interpreter ends, and starts no thread any more
        thread.start()
        thread.join(within)


def _of_the_application() -> Any:
    """The application's provider, or ``None`` when it has set none. This function does not import OpenTelemetry."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or not hasattr(api, "get_tracer_provider"):  # another thread is importing it
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else provider


def _tracer_of(provider: Any) -> Any:
    from opentelemetry.trace import NoOpTracer

    found = provider.get_tracer("nexus_tasks")
    return None if isinstance(found, NoOpTracer) else found


def _names_an_exporter() -> bool:
    read = os.environ.get
    exporter = read("OTEL_TRACES_EXPORTER", "").strip()
    if exporter == "none" or read("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return bool(exporter or any(read(name, "").strip() for name in _ENDPOINTS))


def _make() -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: NAME}))
    # The SDK's own handler at the exit would wait up to 30 s for a collector that hangs.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip() or "otlp")))
    return provider


def _exporter(name: str) -> Any:
    """The exporter of a name of ``OTEL_TRACES_EXPORTER``.

    Raises:
        LookupError: no installed package has an exporter of this name.
    """
    if name == "otlp":
        read = os.environ.get
        protocol = read("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or read("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        return found.load()()
    raise LookupError(f"no installed package has the exporter {name}")


_own = _OwnProvider()
_tracers: dict[Any, Any] = {}  # the provider of the last call, and its tracer
forks.after_in_child(_own.after_fork)
