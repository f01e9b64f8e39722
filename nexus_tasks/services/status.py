"""The state of a deployment: jobs by state, why jobs wait, and how long the queues are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kombu.exceptions import OperationalError

from nexus_tasks import config
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.services import reviews
from nexus_tasks.storage import (
    dead_letters,
    derivations,
    digest_requests,
    ledger,
    memories,
    namespaces,
    observations,
    perspectives,
)
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.types import (
    HeldThreads,
    JobCounts,
    NamespaceStatus,
    PausedKind,
    StatusReport,
    WaitingJob,
    check_namespace,
)

MOST_WAITS = 20  # waiting jobs named for each namespace
WAITS_AT_ONCE = 1_000  # waiting claims that are read at a time to find these jobs


def status(deployment: Deployment, namespace: str | None) -> StatusReport:
    """See :meth:`nexus_tasks.client.Nexus.status`."""
    if namespace is not None:
        check_namespace(namespace)
    with deployment.database.transaction() as tx:
        known = namespaces.every(tx) if namespace is None else [namespaces.get(tx, namespace)]
        counts = {one.name: deployment.claims.counts(one.name) for one in known}
        waits = _first_waits(deployment, {name: counted.get("waiting", 0) for name, counted in counts.items()})
        found = tuple(_namespace_status(deployment, tx, one, counts[one.name], waits[one.name]) for one in known)
    paused = tuple(
        PausedKind(kind=kind, reason=why["reason"], since=datetime.fromtimestamp(float(why["since"]), UTC))
        for kind, why in deployment.claims.paused().items()
    )
    return StatusReport(namespaces=found, paused=paused, held_threads=_held_threads(deployment))


def _held_threads(deployment: Deployment) -> tuple[HeldThreads, ...]:
    return tuple(
        HeldThreads(worker=worker, held=held, threads=threads)
        for worker, (held, threads) in deployment.claims.held_threads().items()
    )


def _first_waits(deployment: Deployment, counts: Mapping[str, int]) -> dict[str, list[Claim]]:
    """The first 20 waiting claims of each namespace.

    Claims are read until every namespace has its 20: ten thousand claims of another namespace may be due before them.

    Args:
        counts: waiting claims by namespace.
    """
    found: dict[str, list[Claim]] = {name: [] for name in counts}
    searched = 0
    while any(len(found[name]) < min(count, MOST_WAITS) for name, count in counts.items()):
        page = deployment.claims.waiting(WAITS_AT_ONCE, after=searched)
        if not page:
            break
        searched += WAITS_AT_ONCE
        for claim in page:
            if claim.namespace in found and len(found[claim.namespace]) < MOST_WAITS:
                found[claim.namespace].append(claim)
    return found


def _namespace_status(
    deployment: Deployment,
    tx: Transaction,
    known: namespaces.NamespaceSettings,
    counts: Mapping[str, int],
    waits: Sequence[Claim],
) -> NamespaceStatus:
    underived, oldest = derivations.backlog(tx, known.id)
    calls, usd = ledger.spent_today(tx, namespace_id=known.id)
    now = deployment.claims.now()
    return NamespaceStatus(
        namespace=known.name,
        jobs=JobCounts(
            waiting=counts.get("waiting", 0),
            pending=counts.get("pending", 0),
            running=counts.get("running", 0),
            dead=dead_letters.count_open(tx, known.id),
        ),
        memories=memories.count_by_level(tx, known.id),
        underived=underived,
        digests_wanted=digest_requests.count_sessions(tx, known.id),
        oldest_underived_seconds=(datetime.now(UTC) - oldest).total_seconds() if oldest else None,
        waits=tuple(_waiting_job(claim, now) for claim in waits),
        reviews=tuple(reviews.held_reflection(row) for row in perspectives.awaiting_review(tx, known.id)),
        observation=tuple(observations.stats(tx, known.id)),
        spend_today_usd=float(usd),
        model_calls_today=calls,
    )


def _waiting_job(claim: Claim, now: float) -> WaitingJob:
    return WaitingJob(
        kind=claim.kind,
        scope=claim.scope,
        reason=claim.wait_reason,
        detail=claim.wait_detail,
        due_in_seconds=None if claim.due_at is None else round(max(claim.due_at - now, 0.0), 1),
    )


def queue_lengths(deployment: Deployment) -> dict[str, int]:
    """Messages in each of our Celery queues, without those that a worker has taken but not begun.

    Raises:
        QueueUnavailable: the broker does not answer.
    """
    with deployment.app.connection_for_read() as connection:
        try:
            with connection.channel() as channel:
                return {queue: _length(deployment, channel, queue) for queue in config.QUEUES}
        except (OperationalError, *connection.connection_errors, *connection.channel_errors) as error:
            raise QueueUnavailable(f"The broker does not say how long its queues are: {error}.") from error


def _length(deployment: Deployment, channel: Any, queue: str) -> int:
    # Not a passive declaration: for kombu an empty Redis list, or one with a key prefix, does not exist.
    return int(deployment.app.amqp.queues[queue](channel).queue_declare().message_count)
