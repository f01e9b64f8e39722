"""What an operator sees and does: status, jobs, dead letters, pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kombu.exceptions import OperationalError

from nexus_tasks import config
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput, NotFound, QueueUnavailable
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.kind import declared
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.outbox import mark
from nexus_tasks.services import reviews
from nexus_tasks.storage import (
    dead_letters,
    derivations,
    digest_requests,
    job_runs,
    ledger,
    memories,
    namespaces,
    observations,
    perspectives,
)
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import DeadLetter, JobRun
from nexus_tasks.tasks import follow_ups
from nexus_tasks.types import LEVELS

MOST_WAITS = 20
WAITS_AT_ONCE = 1_000  # looked at, to find these
RETRY_DELAY = 5.0  # seconds a retried job waits for the commit that puts its work back, should nobody wake it
MOST_CLAIMS = 10_000  # read for a listing, of all tenants together


def memory_counts(tx: Transaction, namespace_id: int) -> dict[str, int]:
    """Active memories of a namespace by level, every level named."""
    return dict.fromkeys(LEVELS, 0) | dict(memories.count_by_level(tx, namespace_id))


def status(deployment: Deployment, namespace: str | None) -> dict[str, Any]:
    """The document that ``nexus status --json`` prints."""
    with deployment.database.transaction() as tx:
        known = [namespaces.get(tx, namespace)] if namespace is not None else namespaces.every(tx)
        counts = {one.name: deployment.claims.counts(one.name) for one in known}
        waits = _waits(deployment, {name: counted.get("waiting", 0) for name, counted in counts.items()})
        found = [_namespace_status(deployment, tx, one, counts[one.name], waits[one.name]) for one in known]
    paused = [
        {"kind": kind, "reason": why["reason"], "since": _moment(float(why["since"]))}
        for kind, why in deployment.claims.paused().items()
    ]
    return {"namespaces": found, "paused": paused}


def _waits(deployment: Deployment, counts: Mapping[str, int]) -> dict[str, list[Claim]]:
    """The first waiting claims of each namespace: one that waits behind ten thousand of another's is found, too."""
    found: dict[str, list[Claim]] = {name: [] for name in counts}
    looked = 0
    while any(len(found[name]) < min(count, MOST_WAITS) for name, count in counts.items()):
        page = deployment.claims.waiting(WAITS_AT_ONCE, after=looked)
        if not page:
            break
        looked += WAITS_AT_ONCE
        for claim in page:
            if len(found.get(claim.namespace, ())) < MOST_WAITS and claim.namespace in found:
                found[claim.namespace].append(claim)
    return found


def _namespace_status(
    deployment: Deployment,
    tx: Transaction,
    known: namespaces.NamespaceSettings,
    counts: Mapping[str, int],
    waits: Sequence[Claim],
) -> dict[str, Any]:
    underived, oldest = derivations.backlog(tx, known.id)
    calls, usd = ledger.spent_today(tx, namespace_id=known.id)
    now = deployment.claims.now()
    return {
        "namespace": known.name,
        "jobs": {state: counts.get(state, 0) for state in ("waiting", "pending", "running")}
        | {"dead": dead_letters.count_open(tx, known.id)},
        "memories": memory_counts(tx, known.id),
        "underived": underived,
        "digests_wanted": digest_requests.count_sessions(tx, known.id),
        "oldest_underived_seconds": (datetime.now(UTC) - oldest).total_seconds() if oldest else None,
        "waits": [
            {
                "kind": claim.kind,
                "scope": claim.scope,
                "reason": claim.wait_reason,
                "detail": claim.wait_detail,
                "due_in_seconds": round(max((claim.due_at or now) - now, 0.0), 1),
            }
            for claim in waits
        ],
        "reviews": [reviews.summary(held) for held in perspectives.awaiting_review(tx, known.id)],
        "observation": observations.stats(tx, known.id),
        "spend_today_usd": float(usd),
        "model_calls_today": calls,
    }


def jobs(deployment: Deployment, namespace: str | None, wanted: str | None, limit: int) -> list[dict[str, Any]]:
    """Claims, dead letters and recent runs, as ``nexus jobs list`` shows them."""
    with deployment.database.transaction() as tx:
        namespace_id = namespaces.get(tx, namespace).id if namespace is not None else None
        letters = dead_letters.list_open(tx, namespace_id, limit) if wanted in (None, "dead") else []
        finished = job_runs.recent(tx, namespace_id, limit, status=wanted)
    alive = [claim for claim in claims(deployment, MOST_CLAIMS) if namespace in (None, claim.namespace)]
    rows = [
        *(_claim(claim) for claim in alive if wanted in (None, claim.state)),
        *(_letter(letter, name) for letter, name in letters),
        *(_run(run, name) for run, name in finished),
    ]
    return rows[:limit]


def job(deployment: Deployment, job_id: str) -> dict[str, Any]:
    """Everything known of one job.

    Raises:
        NotFound: nobody has heard of it, or it is older than what is kept.
    """
    _check(job_id)
    claim = _find(deployment, job_id)
    if claim:
        return _claim(claim) | {"args": dict(claim.args), "errors": claim.errors, "crashes": claim.crashes}
    with deployment.database.transaction() as tx:
        letter = dead_letters.find(tx, job_id)
        if letter:
            found, name = letter
            return _letter(found, name) | {
                "args": found.args,
                "error_type": found.error_type,
                "traceback": found.traceback,
                "errors": found.errors,
                "crashes": found.crashes,
                "resolution": found.resolution,
            }
        run = job_runs.find(tx, job_id)
        if run is None:
            raise NotFound(
                f"There is no job {job_id!r}.", remedy="List jobs with `nexus jobs list`; runs are kept 30 days."
            )
        return _run(*run) | {
            "reasons": run[0].reasons,
            "details": run[0].details,
            "model_calls": run[0].model_calls,
            "cost_usd": float(run[0].cost_usd),
        }


def retry(deployment: Deployment, job_id: str) -> JobResult:
    """Put a dead letter's work back, or release a reflection that is held for review, and ask for it anew.

    Returns the job that does it now.

    Raises:
        NotFound: there is no open dead letter of that id, and no reflection waits for a review under it.
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
        # Before the commit: of a letter that is resolved there is a job, whatever happens between the two.
        job, request = task_of(deployment.engine, again.kind).ask_again(again.args, delay=RETRY_DELAY)
    follow_ups.hurry(deployment, "delay", [request])
    return job


def drop(deployment: Deployment, job_id: str) -> dict[str, Any]:
    """Give up a dead letter, discard the plan of a reflection that is held for review, or take a job out of the queue
    together with the work it stands for.

    Raises:
        NotFound: no open dead letter, no held reflection and no queued job has that id.
    """
    _check(job_id)
    with deployment.database.transaction() as tx:
        letter = dead_letters.open_letter(tx, job_id, lock=True)
        if letter:
            dead_letters.resolve(tx, letter.id, "dropped")
            return {"id": job_id, "kind": letter.kind, "status": "dropped"}
        held = reviews.settle(tx, job_id, drop=True)
        if held:
            return {"id": job_id, "kind": held.kind, "status": "dropped"}
    claim = _find(deployment, job_id)
    if claim is None:
        raise NotFound(f"There is no dead letter or queued job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")
    deployment.engine.storage.withdraw(claim)
    _, wakeups = deployment.claims.drop(claim.key)
    deployment.engine.publisher.publish(wakeups)
    return {"id": job_id, "kind": claim.kind, "status": "dropped"}


def resume(deployment: Deployment, kind: str | None) -> list[str]:
    """Lift the pause of one job kind, or of every paused one.

    Raises:
        InvalidInput: there is no such kind.
    """
    paused = sorted(deployment.claims.paused())
    if kind is not None and kind not in declared() and kind not in paused:
        raise InvalidInput(f"There is no job kind {kind!r}.")
    kinds = paused if kind is None else [kind]
    for one in kinds:
        deployment.engine.publisher.publish(deployment.claims.resume(one))
    return kinds


def claims(deployment: Deployment, limit: int) -> list[Claim]:
    """Every claim, at most ``limit`` of each state and queue: those that run, that wait, and that are queued."""
    store = deployment.claims
    queues = [*config.QUEUES, *sorted(set(store.queues()).difference(config.QUEUES))]  # a kind may bring its own
    pending = [claim for queue in queues for claim in store.pending(queue, limit)]
    return [*store.running(limit), *store.waiting(limit), *pending]


def queue_lengths(deployment: Deployment) -> dict[str, int]:
    """Messages in each of our Celery queues, those that a worker has taken but not begun left out.

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
    # Not passively: kombu takes a Redis list that is empty, or has a key prefix, for none at all.
    return int(deployment.app.amqp.queues[queue](channel).queue_declare().message_count)


def _check(job_id: str) -> None:
    """Refuse what is no job's id: Postgres cannot even be asked for some texts, and an empty one would fit any job."""
    if not job_id or not job_id.isprintable():
        raise NotFound(f"There is no job {job_id!r}.", remedy="List jobs with `nexus jobs list`.")


def _find(deployment: Deployment, job_id: str) -> Claim | None:
    """A claim by its job's id: operators ask rarely, so no index is kept for it."""
    return next((c for c in claims(deployment, 1_000_000) if job_id in (c.job_id, c.rerun_id, *c.also)), None)


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "id": claim.job_id,
        "namespace": claim.namespace,
        "kind": claim.kind,
        "scope": claim.scope,
        "status": claim.state,
        "attempts": claim.attempts - (claim.state != "running"),
        "reason": claim.wait_reason or None,
        "detail": claim.wait_detail or None,
        "queued_at": _moment(claim.enqueued_at),
        "started_at": _moment(claim.started_at) if claim.started_at else None,
        "finished_at": None,
    }


def _letter(letter: DeadLetter, namespace: str) -> dict[str, Any]:
    return {
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


def _run(run: JobRun, namespace: str) -> dict[str, Any]:
    found: Mapping[str, Any] = {
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
    return dict(found)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
