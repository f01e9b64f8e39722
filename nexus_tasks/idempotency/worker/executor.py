"""The executor: a worker's part of a job, from ``begin`` through the handler to the recorded end of the run.

A claim is the record of a job in Redis. A handler is the function of a job kind. Storage is Postgres, in which handlers
commit the jobs' results. The sweep is a loop of every worker that sends lost messages again.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from billiard.common import terminate_handler_fired
from celery import Celery
from celery.exceptions import Ignore, TaskPredicate

from nexus_tasks import tracing
from nexus_tasks.errors import (
    ConfigurationError,
    InvalidInput,
    JobError,
    NexusError,
    QueueUnavailable,
    RanTooLong,
    StorageUnavailable,
    Transient,
    UnsupportedOption,
    with_quotation,
)
from nexus_tasks.idempotency.claim import Begun, Claim, Claimed, Wakeup, log_fields
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.kind import JobKind
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.isolation import ProcessDied, in_pool_child
from nexus_tasks.idempotency.worker.orphans import give_back
from nexus_tasks.idempotency.worker.retry_policy import Decision, decide, retry_later, usable
from nexus_tasks.idempotency.worker.run import ISOLATED_FROM, Run, Superseded, Wait, new_token
from nexus_tasks.idempotency.worker.run_span import RunSpan, with_context
from nexus_tasks.types import JobOutcome, Status, clean_text

T = TypeVar("T")
log = logging.getLogger(__name__)

_MILLISECONDS = re.compile(r"[0-9]{1,15}")  # a longer number would be in no year that a float or `datetime` knows
LONGEST_SUMMARY = 500  # characters of an error that a claim keeps
NOT_UNDERSTOOD = "version"  # the reason of a claim that waits for a worker of another release
TRY_AGAIN_AFTER = 0.5  # seconds between attempts to record a run's end
STACK = 12  # how many of the innermost frames the error of a hung run shows


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the message of a job ended. The status ``superseded`` means that the job has not ended with this message.

    The details of ``superseded`` say why:

    - ``begin``: no run was begun; the value is the :class:`Begun` that says why.
    - ``waits``: the job waits for this reason. The details ``seconds`` and ``error`` come with it.
    - ``process``: the run's own process ended with this exit code.
    - no details: the run has lost its claim.
    """

    outcome: JobOutcome
    error: BaseException | None = None  # what the handler raised, when this process has run it


def execute(
    engine: JobEngine, kind: JobKind, request: Request, *, published_at: str, eager: bool, node: str = ""
) -> Ended:
    """Run the job that ``request`` asks for, if its claim is free. The end of the run is recorded in the claim.

    Args:
        published_at: when the message was published, in ms, as the message says; empty without a message.
        eager: run in the producer's process (``task_always_eager``, ``apply()``).
        node: the name of the Celery worker; empty in a producer.

    Raises:
        celery.exceptions.Ignore: nothing was begun, and the claim stays pending.
    """
    if not eager and not engine.breaker.wait_until_closed():
        raise Ignore
    request, root = with_context(request)
    try:
        begun, claim, wakeups = _begin(engine, kind, request, published_at, node)
        if eager and begun is Begun.STALE:
            # A direct call counts as a new request, as `.delay()` does.
            [ticket] = engine.claims.claim([request])
            if ticket.outcome is Claimed.DONE:
                return Ended(outcome=_outcome_of_marker(engine, request, ticket.job_id))
            begun, claim, wakeups = _begin(engine, kind, request, published_at, node)
    except NexusError as error:
        # The claim stays pending. Once Redis answers, the sweep takes this message for lost and publishes another one.
        log.warning("Job %s was not begun: %s", request.id, error)
        raise Ignore from error
    if claim is None:
        engine.publisher.publish(wakeups)
        return Ended(outcome=JobOutcome(status="superseded", job_id=request.id, details={"begin": begun.value}))
    delivery = request.delivery.id if request.delivery else ""
    run = run_of(engine, kind, claim, request, eager=eager, delivery=delivery)
    run.published_at = int(published_at) / 1000 if _MILLISECONDS.fullmatch(published_at) else 0.0
    with _spanning(run, root), holding(engine, run):
        engine.publisher.publish(wakeups)
        apart = claim.crashes >= ISOLATED_FROM and not eager and not in_pool_child()
        outcome = _perform_isolated(engine, kind, run) if apart else perform(engine, kind, run)
        run.ends.setdefault(claim.key, outcome)
    return Ended(outcome=run.ends[claim.key], error=run.error)


@contextmanager
def _spanning(run: Run, root: tracing.Span) -> Iterator[None]:
    """Open the span of the run for the block."""
    claim = run.primary
    with RunSpan(claim, root, names_namespace=run.deployment.settings.metrics_namespaces) as span:
        run.took, give_up = span.took, run.give_up

        def give_up_and_end(run: Run) -> None:
            give_up(run)
            span.ended(run.ends.get(claim.key, JobOutcome(status="superseded")), run.error)

        run.give_up = give_up_and_end  # the thread of a run over its limit may never end the span
        yield
        span.ended(run.ends[claim.key], run.error)


def _perform_isolated(engine: JobEngine, kind: JobKind, run: Run) -> JobOutcome:
    try:
        return engine.isolation.perform(run)
    except ProcessDied as died:
        return _crashed(engine, run.primary, died)
    except ConfigurationError as error:
        # No other process can load this application. As a `ConfigurationError` it would pause the kind, so that one job
        # that crashes its workers stops this kind of work in every namespace.
        return _failed(engine, kind, run, JobError(error.message, remedy=error.remedy))
    except OSError as error:  # for example too little memory for a process: the job is not the cause
        return _failed(engine, kind, run, Transient(f"No process could be started: {error}."))


def take_up(app: Celery, kind_name: str, key: str, token: str, delivery: str, context: str) -> JobOutcome:
    """Perform a run that the worker has begun. A child of the fork server calls this.

    Args:
        context: the headers that carry the context of the run's span, as JSON.
    """
    engine = engine_of(app)
    kind, claim = engine.kind(kind_name), engine.claims.get(key)
    if claim is None or claim.token != token:
        return JobOutcome(status="superseded")
    try:
        request = kind.received(claim.args, job_id=claim.job_id)
    except InvalidInput:
        engine.publisher.publish(engine.claims.wait([claim], NOT_UNDERSTOOD, 0.0, detail=kind.dialect))
        return JobOutcome(status="superseded", job_id=claim.job_id)
    run = run_of(engine, kind, claim, request, delivery=delivery)
    with tracing.continued(json.loads(context)), holding(engine, run):
        return perform(engine, kind, run)


def run_of(
    engine: JobEngine, kind: JobKind, claim: Claim, request: Request, *, eager: bool = False, delivery: str = ""
) -> Run:
    """The run of a claim under its token; ``delivery`` is the canvas delivery that started it, or empty."""
    return Run(
        deployment=engine.deployment,
        store=engine.claims,
        heartbeat=engine.heartbeat,
        lease=engine.limits.lease,
        claims=[claim],
        requests=[request],
        settle=lambda claims, outcome: _finish(engine, claims, outcome, delivery=delivery),
        publish=engine.publisher.publish,
        company=kind.gathers,
        limit=kind.run_limit,
        give_up=partial(_ran_too_long, engine, kind),
        eager=eager,
        delivery=delivery,
    )


def leave_to_others(engine: JobEngine, kind_name: str, key: str, job_id: str, dialect: str) -> None:
    """Leave to another worker a claim whose message is of a release that this worker does not understand.

    Args:
        dialect: this worker's version of the kind (:attr:`JobKind.dialect`); ``-`` when the worker does not know the
            kind.

    Raises:
        celery.exceptions.Ignore: Redis does not answer. The claim stays pending, and the sweep sends another message.
    """
    log.warning("Job %s (%s) is of another release. It waits for a worker that understands it.", job_id, kind_name)
    try:
        engine.publisher.publish(engine.claims.leave_to_others(key, dialect))
    except NexusError as error:
        log.warning("Job %s could not be left to another worker: %s", job_id, error)
        raise Ignore from error


def _arguments_of(kind: JobKind, claim: Claim) -> Any:
    try:
        return kind.load(claim.args)
    except InvalidInput as error:
        log.warning("Job %s (%s) is of another release: %s", claim.job_id, kind.name, error)
        raise Wait(NOT_UNDERSTOOD, 0.0, kind.dialect) from error


@contextmanager
def holding(engine: JobEngine, run: Run) -> Iterator[None]:
    """Have the heartbeat renew the run's leases inside the block, up to the run's limit.

    A child of a prefork pool that is told to end gives the claims back.
    """
    run.hold(run.claims)
    try:
        with engine.runs.keeping(run):
            yield
    except BaseException:
        if terminate_handler_fired():
            release(engine, [run])
        raise
    finally:
        run.heartbeat.let_go(run.claims)


def release(engine: JobEngine, runs: Sequence[Run]) -> None:
    """Let other workers take the jobs of runs that this process cuts off. This counts neither a crash nor an error."""
    wakeups = list[Wakeup]()
    try:
        for run in runs:
            run.lost.set()
            run.heartbeat.let_go(run.claims)
            if run.claims:
                wakeups += run.store.wait(run.claims, "retry", 0.0, detail="its worker was shut down")
    except QueueUnavailable as error:
        log.warning("Runs were cut off and not given back; their leases end by themselves: %s", error)
    engine.publisher.publish(wakeups)


def _ran_too_long(engine: JobEngine, kind: JobKind, run: Run) -> None:
    """Let the claims of a run that is over its limit wait or give up, as after an unknown error.

    The thread of the run goes on.
    """
    error = RanTooLong(f"The job ran longer than {kind.run_limit:g} s.")
    frame = sys._current_frames().get(run.thread)
    if frame is not None:
        error.add_note("The run was here:\n" + "".join(traceback.format_stack(frame, limit=STACK)))
    _failed(engine, kind, run, error)


def perform(engine: JobEngine, kind: JobKind, run: Run) -> JobOutcome:
    """Call the kind's handler, and end the run as the handler's outcome or error demands."""
    primary = run.primary
    try:
        outcome = _earlier_end(engine, run) or kind.handler(run, _arguments_of(kind, primary))
        if not isinstance(outcome, JobOutcome):
            raise TypeError(f"{kind.name} must return a JobOutcome, not {type(outcome).__name__}.")
    except Superseded:
        # One claim of a batch is lost. The others wait for 0 s, and nothing is counted against them.
        # When the run was over its limit, another thread (`_ran_too_long`) decides about these others, and counts an
        # error.
        if not run.given_up:
            _settle(engine, run.claims, lambda claims: run.store.wait(claims, "retry", 0.0, detail="Superseded"))
        return JobOutcome(status="superseded", job_id=primary.job_id)
    except TaskPredicate as error:
        return _failed(engine, kind, run, _refusal(error))
    except BaseException as error:  # the only place that catches everything; the error's type decides what follows
        if terminate_handler_fired():
            raise  # this process is told to end, and the run has not failed
        outcome = _failed(engine, kind, run, error)
        # In a thread of Celery's pool, a SystemExit would leave the message unacknowledged, and the thread's place in
        # the pool would stay taken.
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        return outcome
    _finish(engine, run.claims, outcome, delivery=run.delivery)
    return replace(outcome, job_id=primary.job_id, reasons=primary.flags.reasons)


def _begin(
    engine: JobEngine, kind: JobKind, request: Request, published_at: str, node: str
) -> tuple[Begun, Claim | None, list[Wakeup]]:
    return engine.claims.begin(
        request,
        new_token(engine.holder.id),
        lease=engine.limits.lease,
        cap=engine.storage.cap(request.namespace),
        gathers=bool(kind.gathers),
        published_at=published_at,
        worker=engine.holder.worker(node),
        dialect=kind.dialect,
    )


def _crashed(engine: JobEngine, claim: Claim, died: ProcessDied) -> JobOutcome:
    """Give back the claim of an isolated run, and the other claims that the run took along in its process."""
    [ended] = died.args
    log.warning("Job %s (%s) ended its process with %s.", claim.job_id, claim.kind, ended)
    try:
        give_back(engine, claim.token)
    except QueueUnavailable as error:
        log.warning("Job %s waits for the end of its lease: %s", claim.job_id, error)
    return JobOutcome(status="superseded", job_id=claim.job_id, details={"process": ended})


def _outcome_of_marker(engine: JobEngine, request: Request, job_id: str) -> JobOutcome:
    """The outcome of the earlier run that has served this request."""
    marker = engine.claims.marker(engine.claims.key(request))
    return JobOutcome(status=cast(Status, marker[1] if marker else "completed"), job_id=job_id)


def _earlier_end(engine: JobEngine, run: Run) -> JobOutcome | None:
    """How this job has ended already, as storage knows; ``None`` when the job is still to be run.

    Storage is asked in two cases. In a further attempt, the worker of an earlier attempt may have died after its
    commit. When ``begin`` made the claim from the message, the job may have ended so long ago that Redis has forgotten
    the job.
    """
    claim = run.primary
    if not (claim.attempts > 1 or claim.remade):
        return None
    return engine.storage.ended(claim, since=run.published_at if run.delivery else None)


def _failed(engine: JobEngine, kind: JobKind, run: Run, error: BaseException) -> JobOutcome:
    """Decide about the claims of a run that raised ``error``: they wait, or become dead letters.

    Each claim's own history decides whether the claim becomes a dead letter. The other claims wait together, for as
    long as the first of them. So they form the same batch again, which can reuse the saved model answer.
    """
    if not run.claims:
        log.error("%s raised after the end of its last claim.", kind.name, exc_info=error)
        return JobOutcome(status="completed")
    now = _redis_time(engine)
    run.error = error = usable(error, now=now)
    primary, limits = run.primary, engine.limits
    if isinstance(error, StorageUnavailable) and error.outage:
        engine.breaker.trip(error)
    decisions = {
        claim.key: decide(error, claim, now=now, max_attempts=limits.max_attempts, retry_for=limits.retry_for)
        for claim in run.claims
    }
    dying = [claim for claim in run.claims if decisions[claim.key].dead]
    others = [claim for claim in run.claims if not decisions[claim.key].dead]
    if others:
        decision = decisions[others[0].key]
        _wait(engine, kind, others, decision, error)
        run.ends.update((claim.key, _waiting(claim, decision, error)) for claim in others)
    if dying:
        run.ends.update(_give_up(engine, kind, dying, error, run.delivery))
    return run.ends.get(primary.key, JobOutcome(status="superseded", job_id=primary.job_id))


def _waiting(claim: Claim, decision: Decision, error: BaseException) -> JobOutcome:
    details = {"waits": decision.reason, "seconds": round(decision.seconds, 3), "error": clean_text(str(error))}
    return JobOutcome(status="superseded", job_id=claim.job_id, details=details)


def _refusal(predicate: TaskPredicate) -> UnsupportedOption:
    """The error of a handler that raised Celery's ``Ignore``, ``Reject`` or ``Retry``."""
    refusal = UnsupportedOption(
        f"A job cannot raise {type(predicate).__name__}.",
        remedy="Return a JobOutcome, or raise a JobError; its type decides what happens.",
    )
    refusal.__cause__ = predicate
    return refusal


def _redis_time(engine: JobEngine) -> float:
    """The time by the Redis server's clock, as in ``failing_since`` of claims. Without Redis, this machine's time."""
    try:
        return engine.claims.now()
    except QueueUnavailable:
        return time.time()


def _wait(engine: JobEngine, kind: JobKind, claims: Sequence[Claim], decision: Decision, error: BaseException) -> None:
    if decision.error:
        message = "Job %s (%s) failed and will be retried."
        log.warning(message, claims[0].job_id, kind.name, exc_info=error, extra=log_fields(claims[0]))

    def transition(waiting: Sequence[Claim]) -> Sequence[Wakeup]:
        if decision.pause:
            engine.claims.pause(kind.name, clean_text(str(error)))
        return engine.claims.wait(
            waiting,
            decision.reason,
            decision.seconds,
            detail=decision.detail,
            failure="" if isinstance(error, Wait) or engine.storage.may_quote_erased(error) else summary(error),
            retry=decision.retry,
            error=decision.error,
        )

    _settle(engine, claims, transition)
    # Once more, behind an erasure that came between the look and the storing, and found no text to delete.
    if engine.storage.may_quote_erased(error):
        try:
            _with_patience(engine, lambda: engine.claims.forget_errors(claim.key for claim in claims))
        except QueueUnavailable as unreachable:
            log.warning("The error of job %s may quote what was erased: %s", claims[0].job_id, unreachable)


def summary(error: BaseException) -> str:
    """Type and text of an error, for people: readable, on one line, and at most 500 characters."""
    return " ".join(clean_text(f"{type(error).__name__}: {with_quotation(error)}").split())[:LONGEST_SUMMARY]


def _give_up(
    engine: JobEngine, kind: JobKind, claims: Sequence[Claim], error: BaseException, delivery: str
) -> dict[str, JobOutcome]:
    """Commit the dead letters of the claims that the run has not lost, then end these claims.

    ``PostgresJobStorage.dead_letter`` in ``nexus_tasks/outbox.py`` writes each letter. When a letter could not be
    written, the jobs are tried again.

    Returns:
        By claim key, how each claim ended. Claims that the run has lost are left out.
    """
    try:
        lost = _with_patience(engine, lambda: engine.claims.renew(claims, lease=engine.limits.lease))
        claims = [claim for claim in claims if claim not in lost]  # another run has the lost claims and ends them
        for claim in claims:
            engine.storage.dead_letter(claim, error)
            # An error tracker makes an event of this line, and none of Celery's failure: see `JobTask.throws`.
            log.error("Job %s (%s) is a dead letter.", claim.job_id, kind.name, exc_info=error, extra=log_fields(claim))
    except NexusError as unwritten:
        log.warning("A dead letter of %s was not written; the job tries again: %s", kind.name, unwritten)
        decision = retry_later(claims[0], type(unwritten).__name__)
        _wait(engine, kind, claims, decision, unwritten)
        return {claim.key: _waiting(claim, decision, unwritten) for claim in claims}
    _finish(engine, claims, JobOutcome(status="dead"), delivery=delivery)
    return {claim.key: JobOutcome(status="dead", job_id=claim.job_id) for claim in claims}


def _finish(engine: JobEngine, claims: Sequence[Claim], outcome: JobOutcome, *, delivery: str = "") -> None:
    def transition(ended: Sequence[Claim]) -> Sequence[Wakeup]:
        return engine.claims.finish(ended, [outcome.status] * len(ended), delivery=delivery)

    _settle(engine, claims, transition)


def _settle(
    engine: JobEngine, claims: Sequence[Claim], transition: Callable[[Sequence[Claim]], Sequence[Wakeup]]
) -> None:
    """Move claims out of the run into their next state, and publish the wake-ups (Celery messages) that follow."""
    if not claims:
        return
    engine.heartbeat.let_go(claims)
    try:
        wakeups = _with_patience(engine, lambda: transition(claims))
    except QueueUnavailable as error:
        # The run's commit stays. When the lease ends, the job runs again and finds that nothing is left to do.
        log.warning("The end of a run was not recorded: %s", error)
    else:
        engine.publisher.publish(wakeups)


def _with_patience(engine: JobEngine, transition: Callable[[], T]) -> T:
    """Try for the length of a lease, so that a restart of Redis does not turn an ended run into a crash."""
    deadline = time.monotonic() + engine.limits.lease
    while True:
        try:
            return transition()
        except QueueUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(TRY_AGAIN_AFTER)  # Redis does not tell when it is back
