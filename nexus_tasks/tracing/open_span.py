"""A span of OpenTelemetry that is open. Only this module and ``provider.py`` use OpenTelemetry's interface."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import Any, Self

from opentelemetry import context, propagate, trace
from opentelemetry.trace import SpanKind, StatusCode

from nexus_tasks.errors import JobError

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "consumer": SpanKind.CONSUMER}


class OpenSpan:
    """A span. As a ``with`` block it is the current span, and it ends with the block. See ``tracing.span``."""

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        attributes: Mapping[str, Any] | None,
        *,
        kind: str,
        parent: Mapping[str, str] | None,
        began: float | None,
    ) -> None:
        self._span = tracer.start_span(
            name,
            context=None if parent is None else propagate.extract(parent, context=context.Context()),
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=None if began is None else int(began * 1e9),
            record_exception=False,  # the message of an exception may quote what a user has said
            set_status_on_exception=False,
        )
        self._token: Token[context.Context] | None = None

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if self._token is not None:
            context.detach(self._token)
        if error is not None:
            self.fail(error)
        self.end()

    @property
    def recording(self) -> bool:
        """Whether the span is collected: it is sampled, and it has not ended."""
        return self._span.is_recording()

    def set(self, name: str, value: str | int | float | bool) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def link(self, carrier: Mapping[str, str]) -> None:
        """Link the span to the span whose context ``carrier`` carries."""
        other = trace.get_current_span(propagate.extract(carrier)).get_span_context()
        if other.is_valid:
            self._span.add_link(other)

    def fail(self, error: BaseException) -> None:
        """Note the type of an error. An error for which a job waits is no failure: its wait reason is noted."""
        reason = error.wait_reason if isinstance(error, JobError) else ""
        if reason:
            self.set("nexus.wait.reason", reason)
            return
        self.set("error.type", type(error).__name__)
        self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """End the span. A second call does nothing."""
        if self._span.is_recording():
            self._span.end()

    def carrier(self) -> dict[str, str]:
        """Headers that carry the span's context to another process."""
        found: dict[str, str] = {}
        propagate.inject(found, context=trace.set_span_in_context(self._span, context.Context()))
        return found
