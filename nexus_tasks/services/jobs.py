"""Listing, showing, retrying and dropping jobs, and resuming paused kinds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nexus_tasks import config
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NotFound
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.kind import declared
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.outbox import mark
from nexus_tasks.services import reviews
from nexus_tasks.storage import dead_letters, job_runs, namespaces
from nexus_tasks.storage.models import DeadLetter, JobRun
from nexus_tasks.tasks import follow_ups
from nexus_tasks.types import DroppedJob, JobDetails, JobInfo, check_namespace

# Seconds that a retried job waits for the commit that makes its work wanted again. After the commit the job is woken.
RETRY_DELAY = 5.0
MOST_CLAIMS = 10_000  # claims that a listing reads, of all namespaces together


def list_jobs(deployment: Deployment, namespace: str | None, wanted: str | None, limit: int) -> list[JobInfo]:
    """See :meth:`nexus_tasks.client.Nexus.jobs`."""
    if namespace is not None:
        check_namespace(namespace)
    with deployment.database.transaction() as tx:
        namespace_id = None if namespace is None else namespaces.get(tx, namespace).id
        letters = dead_letters.list_open(tx, namespace_id, limit) if wanted in (None, "dead") else []
        finished = job_runs.recent(tx, namespace_id, limit, status=wanted)
    alive = [claim for claim in claims(deployment, MOST_CLAIMS) if namespace in (None, claim.namespace)]
    rows = [
        *(JobInfo(**_of_claim(claim)) for claim in alive if wanted in (None, claim.state)),
        *(JobInfo(**_of_letter(letter, name)) for letter, name in letters),
        *(JobInfo(**_of_run(run, name)) for run, name in finished),
    ]
    return rows[:limit]


def show_job(deployment: Deployment, job_id: str) -> JobDetails:
    """See :meth:`nexus_tasks.client.Nexus.job`."""
    _check(job_id)
    claim = _find_claim(deployment, job_id)
    if claim:
        return JobDetails(**_of_claim(claim), args=dict(claim.args), errors=claim.errors, crashes=claim.crashes)
    with deployment.database.transaction() as tx:
        letter = dead_letters.find(tx, job_id)
        run = None if letter else job_runs.find(tx, job_id)
    if letter:
        found, name = letter
        return JobDetails(
            **_of_letter(found, name),
            args=found.args,
            error_type=found.error_type,
            traceback=found.traceback,
            errors=found.errors,
            crashes=found.crashes,
            resolution=found.resolution,
        )
    if run is None:
        raise NotFound(
            f"There is no job {job_id!r}.", remedy="List jobs with `nexus jobs list`; runs are kept 30 days."
        )
    ended, name = run
    return JobDetails(
        **_of_run(ended, name),
        reasons=tuple(ended.reasons),
        details=ended.details,
        model_calls=ended.model_calls,
        cost_usd=float(ended.cost_usd),
    )


def retry(deployment: Deployment, job_id: str) -> JobResult:
    """Put a dead letter's work back, or release a reflection that is held for review, and ask for its job again.

    Returns:
        The job that does the work now.

    Raises:
        NotFound: there is no open dead letter of this id, and no reflection with this id waits for a review.
        ConfigurationError: its job kind is not known here; the letter stays open.
        QueueUnavailable: Redis does not answer; the letter stays open.
    """
    _check(job_id)
    with deployment.database.transaction() as tx:
        letter = dead_letters.open_letter(tx, job_id, lock=True)
        again = reviews.settle(tx, job_id, drop=False) if letter is None else None
        if letter:
            dead_letters.resolve(tx, letter.id, "retried")
            mark(tx, letter.namespace_id, letter.kind, letter.args, dead=False)
            again = reviews.Settled(kind=letter.kind, args=letter.args)
        if again is None:
            raise NotFound(
                f"There is no open dead letter {job_id!r}.", remedy="List them with `nexus jobs list --status dead`."
            )
        # The job is asked for before the commit, so a resolved letter always has a job.
        job, request = task_of(deployment.engine, again.kind).ask_again(again.args, delay=RETRY_DELAY)
    follow_ups.hurry(deployment, "delay", [request])
    return job


def drop(deployment: Deployment, job_id: str) -> DroppedJob:
    """Drop a dead letter, the plan of a reflection that is held for review, or a queued job with its work.

    Raises:
        NotFound: no open dead letter, no held reflection and no queued job has that id.
    """
    _check(job_id)
    with deployment.database.transaction() as tx:
        letter = dead_letters.open_letter(tx, job_id, lock=True)
        if letter:
            dead_letters.resolve(tx, letter.id, "dropped")
            return DroppedJob(id=job_id, kind=letter.kind)
        held = reviews.settle(tx, job_id, drop=True)
        if held:
            return DroppedJob(id=job_id, kind=held.kind)
    claim = _find_claim(deployment, job_id)
    if claim is None:
        raise NotFound(f"There is no dead letter or queued job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")
    deployment.engine.storage.withdraw(claim)
    _, wakeups = deployment.claims.drop(claim.key)
    deployment.engine.publisher.publish(wakeups)
    return DroppedJob(id=job_id, kind=claim.kind)


def resume(deployment: Deployment, kind: str | None) -> tuple[str, ...]:
    """Lift the pause of one job kind, or of every paused one. Returns the kinds.

    Raises:
        InvalidInput: there is no such kind.
    """
    paused = sorted(deployment.claims.paused())
    if kind is not None and kind not in declared() and kind not in paused:
        raise InvalidInput(f"There is no job kind {kind!r}.")
    kinds = tuple(paused) if kind is None else (kind,)
    for one in kinds:
        deployment.engine.publisher.publish(deployment.claims.resume(one))
    return kinds


def claims(deployment: Deployment, limit: int) -> list[Claim]:
    """Every claim, at most ``limit`` of each state and queue: those that run, that wait, and that are queued."""
    store = deployment.claims
    queues = [*config.QUEUES, *sorted(set(store.queues()).difference(config.QUEUES))]  # queues of other kinds
    pending = [claim for queue in queues for claim in store.pending(queue, limit)]
    return [*store.running(limit), *store.waiting(limit), *pending]


def _check(job_id: str) -> None:
    """Refuse a text that cannot be a job's id: Postgres rejects some texts, and an empty one would match any job."""
    if not job_id or not job_id.isprintable():
        raise NotFound(f"There is no job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")


def _find_claim(deployment: Deployment, job_id: str) -> Claim | None:
    """The claim with this job id. It reads all claims: operators ask rarely, so there is no index."""
    return next((c for c in claims(deployment, 1_000_000) if job_id in (c.job_id, c.rerun_id, *c.also)), None)


def _of_claim(claim: Claim) -> dict[str, Any]:
    return {
        "source": "queue",
        "id": claim.job_id,
        "namespace": claim.namespace,
        "kind": claim.kind,
        "scope": claim.scope,
        "status": claim.state,
        "attempts": claim.attempts - (claim.state != "running"),
        "reason": claim.wait_reason or None,
        "detail": claim.wait_detail or None,
        "queued_at": datetime.fromtimestamp(claim.enqueued_at, UTC),
        "started_at": datetime.fromtimestamp(claim.started_at, UTC) if claim.started_at else None,
        "finished_at": None,
    }


def _of_letter(letter: DeadLetter, namespace: str) -> dict[str, Any]:
    return {
        "source": "dead_letters",
        "id": letter.job_id,
        "namespace": namespace,
        "kind": letter.kind,
        "scope": letter.scope,
        "status": "dead" if letter.resolution is None else letter.resolution,
        "attempts": letter.errors + letter.crashes,
        "error": letter.message,
        "queued_at": letter.first_at,
        "started_at": None,
        "finished_at": letter.last_at,
    }


def _of_run(run: JobRun, namespace: str) -> dict[str, Any]:
    return {
        "source": "runs",
        "id": run.job_id,
        "namespace": namespace,
        "kind": run.kind,
        "scope": run.scope,
        "status": run.status,
        "attempts": run.attempts,
        "queued_at": run.queued_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }
