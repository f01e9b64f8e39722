"""The span of a run, in the trace of the call that asked for the job.

The call's context is in the claim (``trace`` in ``common.lua``), so every run of the job is in the same trace: retries,
and runs after a worker's death. The first run of a job that was asked for without a span begins a trace, and leaves its
context in the claim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nexus_tasks import tracing
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.types import JobOutcome


def with_context(request: Request) -> tuple[Request, tracing.Span]:
    """The request of a message, with the context that its claim keeps if the claim has none.

    Returns:
        The request, and the span that begins the trace, if one does. The span is exported only if it is ended.
    """
    known = json.loads(request.trace) if request.trace else {}
    headers = known.get("headers", {})
    if tracing.is_context(headers):
        return request, tracing.NO_SPAN
    root = tracing.NO_SPAN if tracing.trace_id() else tracing.span(request.kind, kind="consumer")
    carried = root.carrier() or tracing.carrier()
    if carried:
        request = replace(request, trace=json.dumps({**known, "headers": {**headers, **carried}}))
    return request, root


def context_of(claim: Claim) -> dict[str, str]:
    """The headers of a claim, which carry the context of the call that asked for the job."""
    text = claim.fields.get("trace", "")
    headers = json.loads(text).get("headers", {}) if text else {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


class RunSpan:
    """The span of one run.

    Args:
        claim: the claim as ``begin`` has returned it.
        root: the span of :func:`with_context`.
        names_namespace: whether the span may name the job's namespace.
    """

    def __init__(self, claim: Claim, root: tracing.Span, *, names_namespace: bool) -> None:
        asked, around = context_of(claim), tracing.carrier()
        self._claim, self._asked, self._jobs = claim, asked, 1
        self._others = dict[str, tuple[Claim, Mapping[str, str]]]()  # by trace: a sibling, and its context
        self._began = time.time()
        if root.recording and asked == root.carrier():
            self.span = root
        elif around and (not asked or tracing.trace_of(around) == tracing.trace_of(asked)):
            self.span = tracing.span(claim.kind, kind="consumer")
        else:
            self.span = tracing.span(claim.kind, kind="consumer", parent=asked)
            if around:  # such as the span of a message that another library has made
                self.span.link(around)
        if self.span.recording:
            self._describe(names_namespace)

    def __enter__(self) -> RunSpan:
        self.span.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.span.__exit__(*error)

    def took(self, claims: Sequence[Claim]) -> None:
        """Note the siblings that the run has taken along. Those of other traces are linked, one of each trace."""
        if not self.span.recording:
            return
        self._jobs += len(claims)
        own = tracing.trace_of(self.span.carrier())
        for claim in claims:
            asked = context_of(claim)
            trace = tracing.trace_of(asked)
            if trace and trace != own and trace not in self._others:
                self._others[trace] = claim, asked
                self.span.link(asked)

    def ended(self, outcome: JobOutcome, error: BaseException | None) -> None:
        """Note how the run ended, and end the span. Each trace of a sibling gets a span that is linked to the run."""
        if not self.span.recording:
            return
        if error is not None and not isinstance(error, Wait):
            self.span.fail(error)
        result = _result(outcome)
        for name, value in result.items():
            self.span.set(name, value)
        if self._jobs > 1:
            self.span.set("nexus.batch.jobs", self._jobs)
        for claim, asked in self._others.values():
            name = f"{claim.kind} in a batch"
            aside = tracing.span(name, {**_of(claim), **result}, kind="consumer", parent=asked, began=self._began)
            aside.link(self.span.carrier())
            aside.end()
        self.span.end()

    def _describe(self, names_namespace: bool) -> None:
        claim = self._claim
        for name, value in _of(claim).items():
            self.span.set(name, value)
        if names_namespace:
            self.span.set("nexus.namespace", claim.namespace)
        published = int(claim.fields.get("published_at", 0)) / 1000
        if claim.started_at and published:
            waited = max(claim.started_at - published, 0.0)
            self.span.set("nexus.queue.seconds", round(waited, 3))
            # Redis has measured the wait, whose clock may differ from ours. So the span ends when the run begins.
            name, parent = f"{claim.kind} in the queue", self._asked or self.span.carrier()
            tracing.span(name, {"nexus.queue": claim.queue}, parent=parent, began=self._began - waited).end()


def bury(claim: Claim) -> None:
    """Note, in a job's trace, that its workers died so often that it is a dead letter."""
    with tracing.span(f"{claim.kind} dead letter", _of(claim), parent=context_of(claim)) as span:
        span.set("nexus.job.outcome", "dead")


def _of(claim: Claim) -> dict[str, tracing.Value]:
    found: dict[str, tracing.Value] = {
        "nexus.job.kind": claim.kind,
        "nexus.job.id": claim.job_id,
        "nexus.job.attempt": claim.attempts,
    }
    if claim.crashes:
        found["nexus.job.crashes"] = claim.crashes
    return found


def _result(outcome: JobOutcome) -> dict[str, tracing.Value]:
    details = outcome.details
    if "waits" in details:
        reason, seconds = str(details["waits"]), float(details["seconds"])
        return {"nexus.job.outcome": "waits", "nexus.wait.reason": reason, "nexus.wait.seconds": seconds}
    return {"nexus.job.outcome": "process died" if "process" in details else outcome.status}
