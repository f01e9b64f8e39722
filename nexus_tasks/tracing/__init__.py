"""Spans of OpenTelemetry, and how their context gets from one process to another.

    with tracing.span("nexus.ingest") as span:
        span.set("nexus.messages.stored", 3)
        message["headers"] |= tracing.carrier()

A span costs less than 1 µs, and nothing of OpenTelemetry is imported, while nothing collects spans. Spans are collected
when the application has set a tracer provider, or when ``OTEL_*`` variables name an exporter (see ``provider.py``).

No span has a text of a user: names, numbers, and the types of errors, but no message of an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from nexus_tasks.tracing.provider import flush, tracer

if TYPE_CHECKING:
    from nexus_tasks.tracing.open_span import OpenSpan

Kind = Literal["internal", "client", "consumer"]
Value: TypeAlias = str | int | float | bool


class NoSpan:
    """Stands for a span while nothing collects spans."""

    recording = False

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def set(self, _name: str, _value: Value) -> None:
        """Do nothing."""

    def link(self, _carrier: Mapping[str, str]) -> None:
        """Do nothing."""

    def fail(self, _error: BaseException) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def carrier(self) -> dict[str, str]:
        """No headers."""
        return {}


Span: TypeAlias = "OpenSpan | NoSpan"
NO_SPAN = NoSpan()


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: Mapping[str, str] | None = None,
    began: float | None = None,
) -> Span:
    """Open a span. As a ``with`` block it is the current span; without a block, call its ``end()``.

    Args:
        parent: the carrier of the span's parent. Default: the current span.
        began: when the span began, in seconds since the epoch. Default: now.
    """
    found = tracer()
    if found is None:
        return NO_SPAN
    from nexus_tasks.tracing.open_span import OpenSpan

    return OpenSpan(found, name, attributes, kind=kind, parent=parent, began=began)


def carrier() -> dict[str, str]:
    """Headers that carry the current span's context to another process; empty without a span."""
    if tracer() is None:
        return {}
    from opentelemetry import propagate

    found: dict[str, str] = {}
    propagate.inject(found)
    return found


def is_context(headers: Mapping[str, str]) -> bool:
    """Whether headers carry the context of a span. It is false while nothing collects spans."""
    return bool(trace_of(headers))


def trace_of(headers: Mapping[str, str]) -> str:
    """The id of the trace that headers carry, in 32 hexadecimal digits; empty without one."""
    if not headers or tracer() is None:
        return ""
    from opentelemetry import propagate, trace

    return _id(trace.get_current_span(propagate.extract(headers)))


def trace_id() -> str:
    """The id of the current trace, in 32 hexadecimal digits; empty without one."""
    api = sys.modules.get("opentelemetry.trace")
    return "" if api is None else _id(api.get_current_span())


def _id(span: object) -> str:
    context = span.get_span_context()  # type: ignore[attr-defined]
    return f"{context.trace_id:032x}" if context.is_valid else ""


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let spans of the block be children of the span whose context ``headers`` carry."""
    if not is_context(headers):
        yield
        return
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


__all__ = ["NO_SPAN", "Span", "Value", "carrier", "continued", "flush", "is_context", "span", "trace_id", "trace_of"]
