"""List, show, retry and drop jobs, pause and resume namespaces, and resume paused job kinds.

A claim is the record of a queued or running job in Redis. The outbox is the rows in Postgres that ask for jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NexusError, NotFound, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claim_index import INDEXED_START, STATES, ClaimIndex, State
from nexus_tasks.idempotency.kind import declared
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.request import Flags, Request
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.outbox import drop as drop_work
from nexus_tasks.outbox import mark
from nexus_tasks.services import reviews
from nexus_tasks.storage import batches, dead_letters, job_runs, namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, JobRun
from nexus_tasks.tasks import follow_ups, submit_batch
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.types import (
    JOB_STATUSES,
    DroppedJob,
    DroppedJobs,
    FinishedJobs,
    JobDetails,
    JobInfo,
    PausedNamespace,
    RetriedJobs,
    Urgency,
    Worker,
    check_namespace,
    clean_text,
    to_utc,
)

log = logging.getLogger(__name__)

# A retried job is queued before the commit of the rows in Postgres that ask for it again, so the job first waits this
# many seconds. After the commit, this module wakes the job at once.
RETRY_DELAY = 5.0
AT_ONCE = 200  # letters or claims per transaction of a bulk retry or drop
LIMITED_LOOK = 200  # ids that a limited client's search for a job looks at
LETTERS = ("dead", "retried", "dropped")  # the states of a dead letter


# --- listing ----------------------------------------------------------------------------------------------------------
def list_jobs(
    deployment: Deployment,
    namespace: str | None,
    wanted: str | None,
    limit: int,
    *,
    kind: str | None = None,
    offset: int = 0,
) -> list[JobInfo]:
    """See :meth:`nexus_tasks.client.Nexus.jobs`."""
    if wanted is not None and wanted not in JOB_STATUSES:
        raise InvalidInput(f"status {wanted!r} is none of {', '.join(JOB_STATUSES)}.")
    found: list[JobInfo] = []
    for part in _parts(deployment, _namespace_id(deployment, namespace), namespace, wanted, kind):
        rows, skipped = part(offset, limit - len(found))
        found += rows
        offset -= skipped
        if len(found) == limit:
            break
    return found


# One part of a listing, for example the running jobs: (skip, limit) → the part's jobs, and how many jobs it skipped.
Part = Callable[[int, int], tuple[Sequence[JobInfo], int]]


def _parts(
    deployment: Deployment, namespace_id: int | None, namespace: str | None, wanted: str | None, kind: str | None
) -> Iterator[Part]:
    """The parts of a listing in this order: running claims, claims of the other states, dead letters, finished runs."""
    index = ClaimIndex(deployment.claims)

    def running(skip: int, limit: int) -> tuple[Sequence[JobInfo], int]:
        every = index.running(namespace, kind)
        return [JobInfo(**_of_claim(claim)) for claim in every[skip : skip + limit]], min(skip, len(every))

    def queued(state: State) -> Part:
        def part(skip: int, limit: int) -> tuple[Sequence[JobInfo], int]:
            page = index.page(state, namespace=namespace, kind=kind, skip=skip, limit=limit)
            return [JobInfo(**_of_claim(claim)) for claim in page.claims], page.skipped

        return part

    def letters(skip: int, limit: int) -> tuple[Sequence[JobInfo], int]:
        which = dead_letters.Filter(status=wanted or "dead", namespace_id=namespace_id, kind=kind)
        with deployment.database.reading() as tx:
            rows = dead_letters.listed(tx, which, limit, skip=skip)
            skipped = skip if rows or not skip else min(skip, dead_letters.count(tx, which))
        return [JobInfo(**_of_letter(*row)) for row in rows], skipped

    def runs(skip: int, limit: int) -> tuple[Sequence[JobInfo], int]:
        with deployment.database.reading() as tx:
            rows = job_runs.recent(tx, namespace_id, limit, status=wanted, kind=kind, skip=skip)
        return [JobInfo(**_of_run(*row)) for row in rows], skip

    if wanted in (None, "running"):
        yield running
    for state in STATES:
        if state != "running" and wanted in (None, state):
            yield queued(state)
    if wanted is None or wanted in LETTERS:
        yield letters
    if wanted not in STATES:
        yield runs


def _namespace_id(deployment: Deployment, namespace: str | None) -> int | None:
    if namespace is None:
        return None
    with deployment.database.reading() as tx:
        return namespaces.get(tx, check_namespace(namespace)).id


def finished(
    deployment: Deployment, namespace: str | None, since: datetime | None, until: datetime | None
) -> FinishedJobs:
    """See :meth:`nexus_tasks.client.Nexus.finished_jobs`."""
    now = datetime.now(UTC)
    first = to_utc(since) if since else now - timedelta(days=1)
    last = to_utc(until) if until else now
    namespace_id = _namespace_id(deployment, namespace)
    counts: dict[str, dict[str, int]] = {}
    with deployment.database.reading() as tx:
        for kind, status, number in job_runs.count_finished(tx, first, last, namespace_id):
            counts.setdefault(kind, {}).setdefault(status, 0)
            counts[kind][status] += number
    return FinishedJobs(since=first, until=last, counts=counts)


# --- one job ----------------------------------------------------------------------------------------------------------
def show_job(deployment: Deployment, job_id: str) -> JobDetails:
    """See :meth:`nexus_tasks.client.Nexus.job`."""
    _check(job_id)
    claim = ClaimIndex(deployment.claims).find(job_id)
    if claim:
        return JobDetails(
            **_of_claim(claim), **_asked(claim.asked), args=dict(claim.args), errors=claim.errors, crashes=claim.crashes
        )
    with deployment.database.transaction() as tx:
        letter = dead_letters.find(tx, job_id)
        run = None if letter else job_runs.find(tx, job_id)
    if letter:
        found, name = letter
        return JobDetails(
            **_of_letter(found, name),
            **_asked(_flags(found)),
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


def ids_that_begin_with(
    deployment: Deployment, start: str, most: int, *, allowed: Sequence[str] | None = None
) -> list[str]:
    """At most ``most`` ids of jobs, dead letters and runs that begin with ``start``.

    The list is empty when ``start`` has fewer than ``INDEXED_START`` characters. With ``allowed`` it has only jobs of
    these namespaces, of the first ``LIMITED_LOOK`` ids that begin so.
    """
    if len(start) < INDEXED_START or not start.isprintable():
        return []
    looked = most if allowed is None else LIMITED_LOOK
    found = set(ClaimIndex(deployment.claims).ids_that_begin_with(start, looked))
    with deployment.database.reading() as tx:
        for table in (dead_letters, job_runs):
            found.update(table.ids_that_begin_with(tx, start, looked))
    if allowed is None:
        return sorted(found)[:most]
    own = (job_id for job_id in sorted(found) if _namespace_of(deployment, job_id) in allowed)
    return list(islice(own, most))


def _namespace_of(deployment: Deployment, job_id: str) -> str | None:
    try:
        return show_job(deployment, job_id).namespace
    except NotFound:
        return None


def retry(deployment: Deployment, job_id: str, *, urgency: Urgency | None = None) -> JobResult:
    """Retry a dead letter, or release a reflection that is held for review. Ask for the job in both cases.

    Args:
        job_id: the id of the dead letter's job, or of a job that ended with a held reflection (see ``reviews.py``).
        urgency: the urgency of the new run. ``None`` keeps the urgency of the dead letter.

    Returns:
        The job that does the work now.

    Raises:
        NotFound: there is no open dead letter of this id, and no reflection with this id waits for a review.
        ConfigurationError: the letter's job kind is not declared in this process. The letter stays open.
        QueueUnavailable: Redis does not answer. The letter stays open.
    """
    _check(job_id)
    with deployment.database.transaction() as tx:
        letter = dead_letters.open_letter(tx, job_id, lock=True)
        if letter:
            job, request = _retry_letter(deployment, tx, letter, urgency)
        else:
            held = reviews.settle(tx, job_id, drop=False)
            if held is None:
                remedy = "List them with `nexus jobs list --status dead`."
                raise NotFound(f"There is no open dead letter {job_id!r}.", remedy=remedy)
            task = task_of(deployment.engine, held.kind)
            job, request = task.ask_again(held.args, delay=RETRY_DELAY, flags=Flags(urgency=urgency or ""))
    follow_ups.hurry(deployment, "delay", [request])
    return job


def _retry_letter(
    deployment: Deployment, tx: Transaction, letter: DeadLetter, urgency: Urgency | None
) -> tuple[JobResult, Request]:
    """Close a dead letter as ``retried``, and ask for its job with the flags that are stored in the letter.

    A given ``urgency`` replaces the stored urgency.
    """
    flags = _flags(letter)
    if urgency:
        flags = replace(flags, urgency=urgency)
    task = task_of(deployment.engine, letter.kind)
    task.kind.load(letter.args)  # raises when the kind does not accept the arguments, so the letter stays open
    namespaces.refuse_leaving(tx, letter.namespace_id)
    dead_letters.resolve(tx, letter.id, "retried")
    mark(tx, letter.namespace_id, letter.kind, letter.args, dead=False)
    # The job is asked for before the commit, so a resolved letter always has a job.
    return task.ask_again(letter.args, delay=RETRY_DELAY, flags=flags)


def drop(deployment: Deployment, job_id: str) -> DroppedJob:
    """Drop a dead letter, the plan of a reflection that is held for review, or a queued job with its outbox row.

    Raises:
        NotFound: no open dead letter, no held reflection and no queued job has this id.
    """
    _check(job_id)
    with deployment.database.transaction() as tx:
        letter = dead_letters.open_letter(tx, job_id, lock=True)
        if letter:
            _drop_letter(tx, letter)
            return DroppedJob(id=job_id, kind=letter.kind)
        held = reviews.settle(tx, job_id, drop=True)
        if held:
            return DroppedJob(id=job_id, kind=held.kind)
    while claim := ClaimIndex(deployment.claims).find(job_id):
        if _drop_claims(deployment, [claim]):
            return DroppedJob(id=job_id, kind=claim.kind)
        # The run of the claim has ended meanwhile. The claim may go on with the job as a rerun.
    raise NotFound(f"There is no dead letter or queued job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")


# --- many jobs --------------------------------------------------------------------------------------------------------
def retry_many(
    deployment: Deployment, namespace: str | None, kind: str | None, error: str | None, urgency: Urgency | None
) -> RetriedJobs:
    """See :meth:`nexus_tasks.client.Nexus.retry_jobs`."""
    which = dead_letters.Filter(namespace_id=_namespace_id(deployment, namespace), kind=kind, error_type=error)
    retried, refused, after = 0, dict[str, str](), 0
    while True:
        requests = list[Request]()
        with deployment.database.transaction() as tx:
            letters = dead_letters.lock_open(tx, which, AT_ONCE, after=after)
            for letter in letters:
                after, job_id = letter.id, letter.job_id
                try:
                    with tx.begin_nested():
                        requests.append(_retry_letter(deployment, tx, letter, urgency)[1])
                except QueueUnavailable:
                    raise
                except NexusError as problem:
                    refused[job_id] = problem.message
        follow_ups.hurry(deployment, "delay", requests)
        retried += len(requests)
        if len(letters) < AT_ONCE:
            return RetriedJobs(retried=retried, refused=refused)


def drop_many(deployment: Deployment, namespace: str | None, kind: str | None, status: str | None) -> DroppedJobs:
    """See :meth:`nexus_tasks.client.Nexus.drop_jobs`."""
    namespace_id = _namespace_id(deployment, namespace)
    if status == "dead":
        return DroppedJobs(dropped=_drop_letters(deployment, namespace_id, kind))
    states: list[State] = [state for state in STATES if state == status]
    if status is not None and not states:
        raise InvalidInput(f"Jobs of status {status!r} cannot be dropped: only {', '.join(STATES)} and dead.")
    index, dropped = ClaimIndex(deployment.claims), 0
    for state in states or ("waiting", "pending"):
        skip = 0  # number of entries to skip in the index, because their claims could not be dropped
        while True:
            page = index.page(state, namespace=namespace, kind=kind, skip=skip, limit=AT_ONCE)
            gone = _drop_claims(deployment, page.claims)
            dropped += gone
            skip += page.stale + len(page.claims) - gone
            if not page.claims and not page.stale:
                break
    return DroppedJobs(dropped=dropped)


def _drop_letters(deployment: Deployment, namespace_id: int | None, kind: str | None) -> int:
    which, dropped, after = dead_letters.Filter(namespace_id=namespace_id, kind=kind), 0, 0
    while True:
        with deployment.database.transaction() as tx:
            letters = dead_letters.lock_open(tx, which, AT_ONCE, after=after)
            for letter in letters:
                after = letter.id
                _drop_letter(tx, letter)
        dropped += len(letters)
        if len(letters) < AT_ONCE:
            return dropped


def _drop_letter(tx: Transaction, letter: DeadLetter) -> None:
    namespaces.refuse_leaving(tx, letter.namespace_id)
    dead_letters.resolve(tx, letter.id, "dropped")
    known = declared().get(letter.kind)
    try:
        if known is not None:
            known.load(letter.args)
    except InvalidInput:
        return  # another program sent the arguments, so they name no work of an outbox
    drop_work(tx, letter.namespace_id, letter.kind, letter.args, dead=True)


def _drop_claims(deployment: Deployment, gone: Sequence[Claim]) -> int:
    """Change the rows in the outbox that ask for the jobs of claims, so that they ask no more. Then drop the claims.

    Returns how many claims were dropped. A claim that has another job by now stays.
    """
    if not gone:
        return 0
    deployment.engine.storage.withdraw(gone)
    _withdraw_from_batches(deployment, [claim for claim in gone if claim.wait_reason == submit_batch.BATCH])
    dropped = 0
    for claim in gone:
        was_there, wakeups = deployment.claims.drop(claim.key, job_id=claim.job_id)
        deployment.engine.publisher.publish(wakeups)
        dropped += was_there
    return dropped


def _withdraw_from_batches(deployment: Deployment, gone: Sequence[Claim]) -> None:
    """Let no message batch ask the model for jobs that are dropped."""
    if not gone:
        return
    with deployment.database.transaction() as tx:
        batches.withdraw(tx, [claim.job_id for claim in gone])
    for namespace in sorted({claim.namespace for claim in gone}):
        follow_ups.wake_held(deployment, namespace, reserved=True)


# --- pauses -----------------------------------------------------------------------------------------------------------
def pause_namespace(deployment: Deployment, namespace: str, reason: str) -> PausedNamespace:
    """See :meth:`nexus_tasks.client.Nexus.pause_namespace`."""
    with deployment.database.transaction() as tx:
        before = namespaces.get(tx, check_namespace(namespace))
        reason = clean_text(reason)
        known = namespaces.pause(tx, namespace, scrub(reason) if before.scrub else reason)
    assert known.paused_at is not None
    _apply_cap(deployment, namespace)
    return PausedNamespace(since=known.paused_at, reason=known.paused_reason)


def resume_namespace(deployment: Deployment, namespace: str) -> bool:
    """See :meth:`nexus_tasks.client.Nexus.resume_namespace`."""
    with deployment.database.transaction() as tx:
        was_paused = namespaces.resume(tx, check_namespace(namespace))
    _apply_cap(deployment, namespace)
    return was_paused


def _apply_cap(deployment: Deployment, namespace: str) -> None:
    """Write the number of runs that the namespace may have at a time to Redis, so that a change takes effect now.

    The number is 0 while the namespace is paused. If Redis does not answer now, the change takes effect within 60 s,
    because workers write the number too, and a stored 0 expires.
    """
    deployment.forget_namespace(namespace)
    try:
        deployment.engine.publisher.publish(deployment.claims.set_cap(namespace, deployment.cap(namespace)))
    except QueueUnavailable as error:
        log.warning("Redis is away, so the change for the jobs of %s takes up to 60 s: %s", namespace, error)


def resume(deployment: Deployment, kind: str | None) -> tuple[str, ...]:
    """End the pause of one job kind, or of every paused job kind. Returns the names of the kinds that were paused.

    Raises:
        InvalidInput: there is no such kind.
    """
    paused = sorted(deployment.claims.paused())
    if kind is not None and kind not in declared() and kind not in paused:
        raise InvalidInput(f"There is no job kind {kind!r}.")
    kinds = tuple(paused) if kind is None else (kind,)
    for one in kinds:
        deployment.engine.publisher.publish(deployment.claims.resume(one))
    return tuple(one for one in kinds if one in paused)


def _check(job_id: str) -> None:
    """Refuse a text that cannot be a job's id.

    Postgres rejects some unprintable characters, and an empty text would match any job.
    """
    if not job_id or not job_id.isprintable():
        raise NotFound(f"There is no job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")


# --- as documents -----------------------------------------------------------------------------------------------------
def _flags(letter: DeadLetter) -> Flags:
    return Flags(force=letter.force, reasons=tuple(letter.reasons), urgency=letter.urgency)


def _asked(flags: Flags) -> dict[str, Any]:
    return {"force": flags.force, "reasons": flags.reasons, "urgency": flags.urgency or None}


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
        "error": claim.error or None,
        "worker": claim.worker,
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
        "worker": Worker.of(letter.worker),
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
        "worker": Worker.of(run.worker),
        "queued_at": run.queued_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }
