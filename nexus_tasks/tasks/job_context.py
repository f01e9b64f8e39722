"""From a run (claims) to a job context (cognition), and the run rows between them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from nexus_tasks.cognition.resources import JobContext
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.storage import job_runs
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


def job_context(run: Run, namespace: NamespaceSettings, claims: Sequence[Claim] | None = None) -> JobContext:
    """The context of a run's claims, or of some of them: each gets its run row in the effects' transaction."""
    chosen = list(claims or run.claims)

    def record(tx: Transaction, outcome: JobOutcome) -> None:
        job_runs.record(tx, namespace.id, [header(claim) for claim in chosen], outcome)

    return JobContext(
        namespace_id=namespace.id,
        namespace=namespace.name,
        job_id=chosen[0].job_id,
        budget_usd=_budget(namespace),
        still_mine=run.check,
        record=record,
        urgency=run.flags.urgency if not run.eager else "live",
        queued=lambda: _submit(namespace.name),
    )


def _submit(namespace: str) -> None:
    from nexus_tasks.tasks import submit_batch  # imports this module

    follow_ups.ask([submit_batch.request(namespace)])


def dry(namespace: NamespaceSettings) -> JobContext:
    """The context of a dry run: it may ask the model, and commits nothing."""
    return JobContext(
        namespace_id=namespace.id,
        namespace=namespace.name,
        job_id=f"dry-run-{uuid.uuid4()}",
        budget_usd=_budget(namespace),
        still_mine=lambda: None,
        record=lambda _tx, _outcome: None,
    )


def header(claim: Claim) -> job_runs.JobHeader:
    """What a claim's run row says."""
    return job_runs.JobHeader(
        ids=(claim.job_id, *claim.also),
        kind=claim.kind,
        scope=claim.scope,
        reasons=claim.flags.reasons,
        attempts=claim.attempts,
        queued_at=_moment(claim.enqueued_at),
        started_at=_moment(claim.started_at),
    )


def _budget(namespace: NamespaceSettings) -> float | None:
    own = namespace.budget_usd_per_day
    return own if own is not None else runtime().settings.budget_usd_per_day


def _moment(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
