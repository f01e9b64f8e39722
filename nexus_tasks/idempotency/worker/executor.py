"""The worker's side of a job: its run under a lease, from begin to whatever end it finds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from celery.exceptions import Ignore

from nexus_tasks.errors import NexusError, QueueUnavailable, StorageUnavailable, Transient
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Begun, Claim, Claimed, Wakeup
from nexus_tasks.idempotency.producer.publisher import publish
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker import circuit_breaker
from nexus_tasks.idempotency.worker.heartbeat import heartbeat
from nexus_tasks.idempotency.worker.isolation import is_alone, perform_isolated
from nexus_tasks.idempotency.worker.retry_policy import Decision, decide, retry_later
from nexus_tasks.idempotency.worker.run import ALONE_FROM, Run, Superseded, new_token
from nexus_tasks.types import JobOutcome, Status, clean_text

if TYPE_CHECKING:
    from nexus_tasks.idempotency.task import JobTask

T = TypeVar("T")
log = logging.getLogger(__name__)

_TRY_AGAIN = 0.5  # seconds between attempts to record a run's end


def work(task: JobTask, request: Request, *, published_at: str, eager: bool) -> JobOutcome:
    """Run the job that ``request`` stands for, if its claim is free; every way it may end is recorded in the claim."""
    if not eager and not circuit_breaker.outlasted():
        raise Ignore
    try:
        begun, claim = _begin(task, request, published_at)
        if eager and begun is Begun.STALE:
            # Whoever performs a job on the spot asks for it anew, as `.delay()` does.
            [ticket] = binding().claims.claim([request])
            if ticket.outcome is Claimed.DONE:
                return _served(request, ticket.job_id)
            begun, claim = _begin(task, request, published_at)
    except NexusError as error:
        # The claim stays pending; once Redis answers, the sweep finds that this message is lost and sends another.
        log.warning("Job %s was not begun: %s", request.id, error)
        raise Ignore from error
    if claim is None:
        return JobOutcome(status="superseded", job_id=request.id, details={"begin": begun.value})
    run = run_of(task, claim, request, eager=eager, delivery=request.delivery.id if request.delivery else "")
    with alive(run):
        if claim.crashes >= ALONE_FROM and not eager and not is_alone():
            try:
                return perform_isolated(task, run)
            except OSError as error:  # no memory for a process, say: not this job's fault
                return _failed(task, run, Transient(f"No process could be started: {error}."))
        return perform(task, run)


def _begin(task: JobTask, request: Request, published_at: str) -> tuple[Begun, Claim | None]:
    bound = binding()
    return bound.claims.begin(
        request,
        new_token(),
        lease=bound.lease,
        cap=bound.storage.cap(request.namespace),
        gathers=task.gathers,
        published_at=published_at,
    )


def _served(request: Request, job_id: str) -> JobOutcome:
    """How the run ended that has served this request already."""
    claims = binding().claims
    marker = claims.marker(claims.key(request))
    return JobOutcome(status=cast(Status, marker[1] if marker else "completed"), job_id=job_id)


def run_of(task: JobTask, claim: Claim, request: Request, *, eager: bool = False, delivery: str = "") -> Run:
    """The run that a claim's token stands for, started by a canvas delivery or by none."""
    bound = binding()
    return Run(
        store=bound.claims,
        lease=bound.lease,
        claims=[claim],
        requests=[request],
        settle=lambda claims, outcome: _finish(task, claims, outcome, delivery=delivery),
        eager=eager,
        delivery=delivery,
    )


@contextmanager
def alive(run: Run) -> Iterator[None]:
    """Keep the run's claims alive meanwhile."""
    heart = heartbeat()
    heart.hold(run, run.claims)
    try:
        yield
    finally:
        heart.let_go(run.claims)


def perform(task: JobTask, run: Run) -> JobOutcome:
    """Call the job's function, and end the run as its outcome or its error demands."""
    lead = run.lead
    try:
        outcome = JobOutcome(status="dead") if _has_letter(lead) else task.run(run, task.load(lead.args))
        if not isinstance(outcome, JobOutcome):
            raise TypeError(f"{task.kind} must return a JobOutcome, not {type(outcome).__name__}.")
    except Superseded:
        # One claim is lost, the others of a batch may not be: they go back at once, and nothing is counted.
        _settle(task, run.claims, lambda claims: run.store.wait(claims, "retry", 0.0, detail="Superseded"))
        return JobOutcome(status="superseded", job_id=lead.job_id)
    except BaseException as error:  # the type decides: this is the one place that catches everything
        outcome = _failed(task, run, error)
        # Celery's threads leak a message, and with it a place in their pool, when a SystemExit reaches them.
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        return outcome
    _finish(task, run.claims, outcome, delivery=run.delivery)
    return replace(outcome, job_id=lead.job_id, reasons=lead.flags.reasons)


def _has_letter(claim: Claim) -> bool:
    """Whether the dead letter of this job was committed, and only the claim's end was not."""
    return (claim.attempts > 1 or claim.remade) and binding().storage.is_dead(claim.job_id)


def _failed(task: JobTask, run: Run, error: BaseException) -> JobOutcome:
    """Decide about each claim of a run that raised, by its own history: it waits, or becomes a dead letter."""
    if not run.claims:
        log.error("%s raised after the end of its last claim.", task.kind, exc_info=error)
        return JobOutcome(status="completed")
    bound, lead = binding(), run.lead
    if isinstance(error, StorageUnavailable):
        circuit_breaker.note()
    now = _now()
    decisions = {
        claim.key: decide(error, claim, now=now, max_attempts=bound.max_attempts, retry_for=bound.retry_for)
        for claim in run.claims
    }
    dying = [claim for claim in run.claims if decisions[claim.key].dead]
    others = [claim for claim in run.claims if not decisions[claim.key].dead]
    if others:
        _wait(task, others, decisions[others[0].key], error)
    if dying and _buried(task, dying, error, run.delivery):
        return JobOutcome(status="dead", job_id=lead.job_id)
    return JobOutcome(status="superseded", job_id=lead.job_id, details={"waits": str(error)})


def _now() -> float:
    """The time of Redis, by which claims note since when they fail; this machine's clock may be wrong by days."""
    try:
        return binding().claims.now()
    except QueueUnavailable:
        return time.time()


def _wait(task: JobTask, claims: Sequence[Claim], decision: Decision, error: BaseException) -> None:
    if decision.error:
        log.error("Job %s (%s) failed and will be retried.", claims[0].job_id, task.kind, exc_info=error)

    def transition(waiting: Sequence[Claim]) -> Sequence[Wakeup]:
        store = binding().claims
        if decision.pause:
            store.pause(task.kind, clean_text(str(error)))
        return store.wait(
            waiting,
            decision.reason,
            decision.seconds,
            detail=decision.detail,
            retry=decision.retry,
            error=decision.error,
        )

    _settle(task, claims, transition)


def _buried(task: JobTask, claims: Sequence[Claim], error: BaseException, delivery: str) -> bool:
    """Commit the dead letters of those claims that are still this run's, then end them; ``False``: not now."""
    bound = binding()
    try:
        lost = _patiently(lambda: bound.claims.renew(claims, lease=bound.lease))
        claims = [claim for claim in claims if claim not in lost]  # a zombie writes no letter for what another run does
        for claim in claims:
            log.error("Job %s (%s) is a dead letter: %s", claim.job_id, task.kind, error)
            bound.storage.dead_letter(claim, error)
    except NexusError as unwritten:
        log.warning("A dead letter of %s was not written, the job tries again: %s", task.kind, unwritten)
        _wait(task, claims, retry_later(claims[0], type(unwritten).__name__), unwritten)
        return False
    _finish(task, claims, JobOutcome(status="dead"), delivery=delivery)
    return bool(claims)


def _finish(task: JobTask, claims: Sequence[Claim], outcome: JobOutcome, *, delivery: str = "") -> None:
    def transition(ended: Sequence[Claim]) -> Sequence[Wakeup]:
        return binding().claims.finish(ended, [outcome.status] * len(ended), delivery=delivery)

    _settle(task, claims, transition)


def _settle(task: JobTask, claims: Sequence[Claim], transition: Callable[[Sequence[Claim]], Sequence[Wakeup]]) -> None:
    """Take claims out of the run into their next state, and publish what that wakes."""
    if not claims:
        return
    heartbeat().let_go(claims)
    try:
        wakeups = _patiently(lambda: transition(claims))
    except QueueUnavailable as error:
        # What the run committed stays; when its lease ends the claim comes back and finds nothing left to do.
        log.warning("The end of a run was not recorded: %s", error)
    else:
        publish(task.app, wakeups)


def _patiently(transition: Callable[[], T]) -> T:
    """Try for a lease: a Redis that restarts just then should not make an ended run a crashed one."""
    deadline = time.monotonic() + binding().lease
    while True:
        try:
            return transition()
        except QueueUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_TRY_AGAIN)
