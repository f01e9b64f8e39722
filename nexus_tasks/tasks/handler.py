"""The first step of most handlers: find the namespace, and build the job context that ``cognition/`` needs."""

from __future__ import annotations

import functools
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import URGENT
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.llm.base import Purpose
from nexus_tasks.outbox import job_header
from nexus_tasks.storage import job_runs
from nexus_tasks.storage.engine import Database, Transaction
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.tasks import follow_ups
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True, kw_only=True)
class NamespaceRun:
    """A run of a job in a namespace that exists. :func:`in_namespace` gives this object to handlers."""

    run: Run
    deployment: Deployment
    namespace: NamespaceSettings

    @property
    def resources(self) -> Resources:
        """The database, model, embedder and settings."""
        return self.deployment.resources

    @property
    def database(self) -> Database:
        """The connections to Postgres."""
        return self.deployment.database

    def context(self, claims: Sequence[Claim] | None = None) -> JobContext:
        """The job context of this run. Committing the context writes a run row for each of its claims.

        Args:
            claims: the claims that the context is for. With ``None`` it is for all claims of the run.
        """
        chosen = list(claims or self.run.claims)
        namespace = self.namespace

        def record(tx: Transaction, outcome: JobOutcome) -> None:
            gone = outcome.status == "gone"
            headers = [_naming_only(namespace.name, claim) if gone else job_header(claim) for claim in chosen]
            job_runs.record(tx, namespace.id, headers, outcome)

        return JobContext(
            namespace_id=namespace.id,
            namespace=namespace.name,
            job_id=chosen[0].job_id,
            budget=lambda: _budget(self.deployment, namespace),
            still_mine=self.run.check,
            record=record,
            instructions=namespace.instructions,
            urgency="live" if self.run.eager or self.run.flags.urgency == URGENT else self.run.flags.urgency,
            queued=lambda: follow_ups.ask_for(self.deployment, "submit_batch", namespace=namespace.name),
            freed=lambda: follow_ups.wake_held(self.deployment, namespace.name),
            run=(chosen[0].key, chosen[0].token or ""),
        )

    def commit(self, tx: Transaction, outcome: JobOutcome) -> JobOutcome:
        """Write the run rows of the job. Returns ``outcome``.

        This must be the last step of the transaction that writes the job's effects.

        Raises:
            Superseded: the run has lost its claim. The caller must not catch this error, so that the transaction is
                rolled back.
        """
        return self.context().commit(tx, outcome)


def in_namespace(handler: Callable[[NamespaceRun, A], JobOutcome]) -> Callable[[Run, A], JobOutcome]:
    """Let a handler take a :class:`NamespaceRun`. If the namespace does not exist, the job ends as ``gone``."""

    @functools.wraps(handler)
    def handle(run: Run, arguments: A) -> JobOutcome:
        deployment: Deployment = run.deployment
        namespace = deployment.namespace(arguments.namespace)
        if namespace is None:
            deployment.engine.storage.verify()  # raises when this worker uses another database than the claims
            log.warning(
                "Job %s (%s) ends as `gone`: there is no namespace %r.",
                run.primary.job_id,
                run.primary.kind,
                arguments.namespace,
            )
            return _gone(run, arguments.namespace)
        return handler(NamespaceRun(run=run, deployment=deployment, namespace=namespace), arguments)

    return handle


def _gone(run: Run, namespace: str) -> JobOutcome:
    """Write the run rows of jobs whose namespace does not exist."""
    outcome = JobOutcome(status="gone", details={"namespace": namespace})
    with run.deployment.database.transaction() as tx:
        job_runs.record(tx, None, [_naming_only(namespace, claim) for claim in run.claims], outcome)
    return outcome


def _naming_only(namespace: str, claim: Claim) -> job_runs.JobHeader:
    """The header of a run row that only names the namespace, because what else the scope names may be erased."""
    return replace(job_header(claim), scope=json.dumps({"namespace": namespace}, ensure_ascii=False))


def probe_model(*purposes: Purpose) -> Callable[[Deployment], None]:
    """The probe of job kinds that ask the model for these purposes. It costs nothing.

    The probe raises a :class:`JobError` while the model still refuses the credentials or a model's name. The models of
    other purposes do not matter.
    """
    return lambda deployment: deployment.model.probe(purposes)


def dry_context(deployment: Deployment, namespace: NamespaceSettings, why: str = "dry-run") -> JobContext:
    """The job context of model calls without a job. They are paid, and commit nothing.

    Args:
        why: the first word of the job id in the ledger.
    """
    return JobContext(
        namespace_id=namespace.id,
        namespace=namespace.name,
        job_id=f"{why}-{uuid.uuid4()}",
        budget=lambda: _budget(deployment, namespace),
        still_mine=lambda: None,
        record=lambda _tx, _outcome: None,
        instructions=namespace.instructions,
        freed=lambda: follow_ups.wake_held(deployment, namespace.name),
    )


def _budget(deployment: Deployment, namespace: NamespaceSettings) -> float | None:
    """The namespace's present budget in USD per UTC day; ``None`` sets no bound."""
    if namespace.budget_usd_per_day is not None:
        deployment.forget_namespace(namespace.name)  # the cache may be older than `namespace`
    own = (deployment.namespace(namespace.name) or namespace).budget_usd_per_day
    return own if own is not None else deployment.settings.budget_usd_per_day
