"""A span for each call of the client. The jobs that a call asks for are in the trace of its span."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from nexus_tasks import tracing
from nexus_tasks.types import Receipt

T = TypeVar("T")


def traced_methods(client: type[T]) -> type[T]:
    """A class decorator: every public method is a span, named ``nexus.<method>``."""
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.iscoroutinefunction(method):
            setattr(client, name, _traced(method))
    return client


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    name = f"nexus.{method.__name__}"
    names_one = list(inspect.signature(method).parameters)[1:2] == ["namespace"]  # the first argument is a namespace

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with tracing.span(name) as span:
            result = method(self, *args, **kwargs)
            if span.recording:
                first = args[0] if args and names_one else None
                _describe(span, self, kwargs.get("namespace", first), result)
            return result

    return call


def _describe(span: tracing.Span, client: Any, namespace: object, result: object) -> None:
    if client.deployment.settings.metrics_namespaces and isinstance(namespace, str):
        span.set("nexus.namespace", namespace)
    if isinstance(result, Receipt):
        span.set("nexus.messages.stored", result.stored)
        span.set("nexus.messages.duplicates", result.duplicates)
        span.set("nexus.messages.buffered", result.buffered)
        span.set("nexus.jobs.enqueued", result.enqueued)
    elif isinstance(result, list | tuple):
        span.set("nexus.results", len(result))
