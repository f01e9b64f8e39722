"""Report the state of a deployment: counts of jobs by state, the waiting and running jobs, and the queues' lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

from kombu.exceptions import OperationalError

from nexus_tasks import config
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency import quarantine
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.claim_index import ClaimIndex, Waits
from nexus_tasks.services import reviews
from nexus_tasks.storage import dead_letters, figures, namespaces, observations
from nexus_tasks.storage.namespaces import NamespaceSettings
from nexus_tasks.types import (
    HeldThreads,
    JobCounts,
    NamespaceStatus,
    ObservationStats,
    PausedKind,
    PausedNamespace,
    RunningJob,
    StatusReport,
    WaitingJob,
    check_namespace,
)

MOST_JOBS = 20  # for each namespace, the report lists at most this many waiting jobs and this many running jobs


def status(deployment: Deployment, namespace: str | None, *, limit: int, memories: bool = True) -> StatusReport:
    """See :meth:`nexus_tasks.client.Nexus.status`."""
    if namespace is not None:
        check_namespace(namespace)
    index = ClaimIndex(deployment.claims)
    with deployment.database.transaction() as tx:
        known = namespaces.every(tx) if namespace is None else [namespaces.get(tx, namespace)]
        dead = dead_letters.count_open(tx, None if namespace is None else known[0].id)
    # No connection to Postgres is held while Redis is asked, which takes seconds when it is silent.
    counts = index.counts([one.name for one in known])
    jobs = {one.name: _job_counts(counts[one.name], dead.get(one.id, 0)) for one in known}
    shown = known if len(known) <= limit else sorted(known, key=lambda one: (-_sum(jobs[one.name]), one.name))
    shown = sorted(shown[:limit], key=lambda one: one.name)
    with deployment.database.transaction() as tx:
        found = figures.of_namespaces(tx, [one.id for one in shown], memories=memories)
        observed = {one.name: observations.stats(tx, one.id) for one in shown if found[one.id].observed}
    waits = index.waits({one.name: jobs[one.name].waiting for one in shown}, MOST_JOBS)
    running = defaultdict(list)
    for claim in index.running(namespace):
        running[claim.namespace].append(claim)
    now = deployment.claims.now()
    return StatusReport(
        namespaces=tuple(
            _namespace_status(
                one,
                jobs[one.name],
                found[one.id],
                waits=waits[one.name],
                running=running[one.name][:MOST_JOBS],
                observed=observed.get(one.name, ()),
                now=now,
            )
            for one in shown
        ),
        left_out=len(known) - len(shown),
        jobs=_total(jobs.values()),
        paused=_paused(deployment),
        held_threads=_held_threads(deployment),
        quarantined=quarantine.count(deployment.claims)[0],
    )


def _held_threads(deployment: Deployment) -> tuple[HeldThreads, ...]:
    return tuple(
        HeldThreads(worker=worker, held=held, threads=threads)
        for worker, (held, threads) in deployment.claims.held_threads().items()
    )


def _job_counts(counts: Mapping[str, int], dead: int) -> JobCounts:
    return JobCounts(
        waiting=counts.get("waiting", 0), pending=counts.get("pending", 0), running=counts.get("running", 0), dead=dead
    )


def _sum(jobs: JobCounts) -> int:
    return jobs.waiting + jobs.pending + jobs.running + jobs.dead


def _total(jobs: Iterable[JobCounts]) -> JobCounts:
    every = list(jobs)
    return JobCounts(
        waiting=sum(one.waiting for one in every),
        pending=sum(one.pending for one in every),
        running=sum(one.running for one in every),
        dead=sum(one.dead for one in every),
    )


def _namespace_status(
    known: NamespaceSettings,
    jobs: JobCounts,
    found: figures.Figures,
    *,
    waits: Waits,
    running: Sequence[Claim],
    observed: Sequence[ObservationStats],
    now: float,
) -> NamespaceStatus:
    oldest = found.oldest_underived
    soonest = sorted(waits.oldest, key=lambda claim: inf if claim.due_at is None else claim.due_at)
    return NamespaceStatus(
        namespace=known.name,
        jobs=jobs,
        memories=found.memories,
        underived=found.underived,
        digests_wanted=found.digests_wanted,
        oldest_underived_seconds=max(now - oldest.timestamp(), 0.0) if oldest else None,
        paused=PausedNamespace(since=known.paused_at, reason=known.paused_reason) if known.paused_at else None,
        waiting_for=waits.counts,
        waits=tuple(_waiting_job(claim, now) for claim in soonest[:MOST_JOBS]),
        runs=tuple(_running_job(claim, now) for claim in running),
        reviews=tuple(reviews.held_reflection(row) for row in found.reviews),
        observation=tuple(observed),
        spend_today_usd=float(found.spend_today_usd),
        model_calls_today=found.model_calls_today,
    )


def _waiting_job(claim: Claim, now: float) -> WaitingJob:
    return WaitingJob(
        kind=claim.kind,
        scope=claim.scope,
        reason=claim.wait_reason,
        detail=claim.wait_detail,
        due_in_seconds=None if claim.due_at is None else round(max(claim.due_at - now, 0.0), 1),
    )


def _running_job(claim: Claim, now: float) -> RunningJob:
    return RunningJob(
        id=claim.job_id,
        kind=claim.kind,
        scope=claim.scope,
        for_seconds=round(max(now - (claim.started_at or now), 0.0), 1),
        worker=claim.worker,
    )


def _paused(deployment: Deployment) -> tuple[PausedKind, ...]:
    return tuple(
        PausedKind(kind=kind, reason=why["reason"], since=datetime.fromtimestamp(float(why["since"]), UTC))
        for kind, why in deployment.claims.paused().items()
    )


def queue_lengths(deployment: Deployment) -> dict[str, int]:
    """The number of messages in each Celery queue of nexus-tasks: queue → messages.

    A message that a worker has received is not counted, even if the worker has not begun its job.

    Raises:
        QueueUnavailable: the broker does not answer.
    """
    with deployment.app.connection_for_read() as connection:
        try:
            with connection.channel() as channel:
                known = deployment.app.amqp.queues  # those of an own `task_queues` may be fewer
                return {queue: _length(deployment, channel, queue) for queue in config.QUEUES if queue in known}
        except (OperationalError, *connection.connection_errors, *connection.channel_errors) as error:
            raise QueueUnavailable(f"The lengths of the broker's queues cannot be read: {error}.") from error


def _length(deployment: Deployment, channel: Any, queue: str) -> int:
    # A passive declaration would fail, because on Redis kombu takes an empty queue, or a queue with a key prefix, for a
    # missing queue.
    return int(deployment.app.amqp.queues[queue](channel).queue_declare().message_count)
