"""The task class behind every job kind: claims in the producer, runs under a lease in the worker."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from celery import Celery, Task
from celery.exceptions import Ignore
from pydantic import BaseModel, ConfigDict, ValidationError

from nexus_tasks.celery import app
from nexus_tasks.errors import InvalidInput, NexusError, QueueUnavailable, UnsupportedOption
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Begun, Claim, Claimed, Ticket, Wakeup
from nexus_tasks.idempotency.heartbeat import heartbeat
from nexus_tasks.idempotency.policy import decide
from nexus_tasks.idempotency.publish import HEADER, TASK_PREFIX, header, publish
from nexus_tasks.idempotency.request import Flags, Request, WhileRunning, canonical
from nexus_tasks.idempotency.result import JobResult
from nexus_tasks.idempotency.run import Run, Superseded, new_token
from nexus_tasks.types import JobOutcome, clean_text

log = logging.getLogger(__name__)

# Celery's own means to the same ends would fight with the claims.
REFUSED = ("expires", "time_limit", "soft_time_limit", "priority")


class Arguments(BaseModel):
    """A job's arguments, validated in the producer. ``scope`` names the fields that make two requests the same work."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    scope: ClassVar[tuple[str, ...]]
    namespace: str

    def flags(self) -> Flags:
        """What is merged when this request meets another for the same work."""
        return Flags(urgency="live")

    def each(self) -> Sequence[Self]:
        """The requests this one stands for, when a default means several; usually itself."""
        return [self]


class JobTask(Task):  # type: ignore[misc]
    """A Celery task with an idempotency key. Declared with :func:`job`, never subclassed by hand."""

    abstract = True
    typing = False  # the arguments are checked by their model, with better messages
    arguments: type[Arguments]
    job_queue: str
    while_running: WhileRunning
    immutable: bool
    gathers: bool

    @property
    def kind(self) -> str:
        """The job kind: the task's name without the package."""
        return str(self.name).rpartition(".")[2]

    # --- producers ----------------------------------------------------------------------------------------------------
    def parse(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Arguments:
        """The validated arguments of a call.

        Raises:
            InvalidInput: names the field and what is wrong with it.
        """
        named = dict(zip(self.arguments.model_fields, args or (), strict=False)) | dict(kwargs or {})
        if args and len(args) > len(self.arguments.model_fields):
            raise InvalidInput(f"{self.kind} takes at most {len(self.arguments.model_fields)} arguments.")
        try:
            return self.arguments.model_validate(named)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            raise InvalidInput(f"{self.kind}: {faults}.") from None

    def request_for(
        self, arguments: Arguments, *, job_id: str | None = None, delay: float = 0.0, wait_reason: str = "delay"
    ) -> Request:
        """The request that asks for this job with ``arguments``, due in ``delay`` seconds."""
        named = arguments.model_dump(mode="json")
        return Request(
            id=job_id or str(uuid.uuid4()),
            kind=self.kind,
            namespace=arguments.namespace,
            queue=self.job_queue,
            scope=canonical({name: named[name] for name in arguments.scope}),
            args=canonical(named),
            flags=arguments.flags(),
            while_running=self.while_running,
            immutable=self.immutable,
            delay=delay,
            wait_reason=wait_reason,
        )

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> JobResult:
        """Claim the job and, when it is new, publish it. ``countdown`` (seconds) and ``eta`` delay it without Celery's
        own timers.

        Raises:
            InvalidInput: an argument is wrong; nothing was queued.
            UnsupportedOption: a Celery option that claims replace.
            QueueUnavailable: Redis does not answer; nothing was queued.
        """
        refused = [name for name in REFUSED if options.get(name) is not None]
        if refused:
            raise UnsupportedOption(f"{', '.join(refused)} cannot be set on {self.kind}.")
        delay = countdown or ((_utc(eta) - datetime.now(UTC)).total_seconds() if eta else 0.0)
        each = self.parse(args, kwargs).each()
        requests = [
            self.request_for(one, job_id=task_id if i == 0 else None, delay=max(delay, 0.0))
            for i, one in enumerate(each)
        ]
        tickets = self.enqueue(requests, **options)
        results = [self._result(r, t) for r, t in zip(requests, tickets, strict=True)]
        return results[0].joined(results[1:])

    def enqueue(self, requests: Sequence[Request], **options: Any) -> list[Ticket]:
        """Claim many requests of this kind in one step and publish those that are new."""
        tickets = binding().claims.claim(requests)
        wakeups = [ticket.wakeup for ticket in tickets if ticket.wakeup]
        if self.app.conf.task_always_eager:
            for wakeup in wakeups:
                self.apply(kwargs=dict(wakeup.args), task_id=wakeup.job_id, headers=header(wakeup), throw=True)
        else:
            publish(self.app, wakeups, **options)
        return tickets

    def send(self, wakeup: Wakeup, **options: Any) -> None:
        """Publish one wake-up, past the claim: it has one already."""
        super().apply_async(
            kwargs=dict(wakeup.args),
            task_id=wakeup.job_id,
            queue=options.pop("queue", wakeup.queue),
            headers={**(options.pop("headers", None) or {}), **header(wakeup)},
            **options,
        )

    def _result(self, request: Request, ticket: Ticket) -> JobResult:
        return JobResult(
            ticket.job_id,
            app=self.app,
            outcome=ticket.outcome,
            kind=self.kind,
            scope=request.scope,
            created=ticket.job_id == request.id,
        )

    def standing(self, request: Request) -> JobResult:
        """The job that stands for ``request`` now, without asking for one: the claim's, else a finished one's."""
        claims = binding().claims
        claim = claims.get(claims.key(request))
        job_id = claim.rerun_id or claim.job_id if claim else request.id
        return self._result(request, Ticket(outcome=Claimed.MERGED, job_id=job_id))

    def anew(self, args: Mapping[str, Any]) -> JobResult:
        """Ask again for work that gave up, past its done marker."""
        request = self.request_for(self.parse((), args)).renewed()
        [ticket] = self.enqueue([request])
        return self._result(request, ticket)

    def retry(self, *_args: Any, **_options: Any) -> Any:
        """Refused: raise a typed error instead, its type decides."""
        raise UnsupportedOption("retry() does not work here.", remedy="Raise a JobError; its type decides.")

    # --- workers ------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run the job under its claim; returns its outcome as Celery's result."""
        bound = binding()
        delivered = (self.request.headers or {}).get(HEADER) or self.request.get(HEADER) or {}
        request = self.request_for(self.parse(args, kwargs), job_id=self.request.id)
        try:
            begun, claim = bound.claims.begin(
                request,
                new_token(),
                lease=bound.lease,
                cap=bound.storage.cap(request.namespace),
                gathers=self.gathers,
                published_at=str(delivered.get("published_at", "")),
            )
        except (QueueUnavailable, NexusError) as error:
            # The claim stays pending; once Redis answers, the sweep finds that this message is lost and sends another.
            log.warning("Job %s was not begun: %s", request.id, error)
            raise Ignore from error
        if claim is None:
            return _as_result(JobOutcome(status="superseded", job_id=request.id, details={"begin": begun.value}))
        run = Run(
            store=bound.claims,
            lease=bound.lease,
            claims=[claim],
            requests=[request],
            settle=self._finish,
            eager=bool(self.request.is_eager or self.request.called_directly),
        )
        assert begun is Begun.RUN
        heartbeat().add(run)
        try:
            return _as_result(self._perform(run))
        finally:
            heartbeat().remove(run)

    def _perform(self, run: Run) -> JobOutcome:
        bound = binding()
        try:
            if run.lead.crashes and bound.storage.is_dead(run.lead.job_id):
                outcome = JobOutcome(status="dead")  # the letter was committed, the claim's end was not
            else:
                outcome = self.run(run, self.parse((), run.lead.args))
        except Superseded:
            return JobOutcome(status="superseded", job_id=run.lead.job_id)
        except Exception as error:  # the type decides: this is the one place that catches everything
            failed = self._failed(run, error)
            if not failed:
                return JobOutcome(status="superseded", job_id=run.lead.job_id, details={"waits": str(error)})
            outcome = failed
        lead = run.lead if run.claims else None
        self._finish(run.claims, outcome)
        return replace(outcome, job_id=lead.job_id, reasons=lead.flags.reasons) if lead else outcome

    def _finish(self, claims: Sequence[Claim], outcome: JobOutcome) -> None:
        if claims:
            self._settle(lambda: binding().claims.finish(claims, [outcome.status] * len(claims)))

    def _failed(self, run: Run, error: Exception) -> JobOutcome | None:
        """Decide about a run that raised: its claims wait (``None``), or each becomes a dead letter."""
        bound = binding()
        decision = decide(error, run.lead, now=time.time(), max_attempts=bound.max_attempts, retry_for=bound.retry_for)
        if not decision.dead:
            if decision.pause:
                bound.claims.pause(self.kind, clean_text(str(error)))
            if decision.error:
                log.exception("Job %s (%s) failed and will be retried.", run.lead.job_id, self.kind)
            self._settle(
                lambda: bound.claims.wait(
                    run.claims,
                    decision.reason,
                    decision.seconds,
                    detail=decision.detail,
                    retry=decision.retry,
                    error=decision.error,
                )
            )
            return None
        log.error("Job %s (%s) is a dead letter: %s", run.lead.job_id, self.kind, error)
        for claim in run.claims:
            bound.storage.dead_letter(claim, error)
        return JobOutcome(status="dead", job_id=run.lead.job_id)

    def _settle(self, transition: Callable[[], Sequence[Wakeup]]) -> None:
        try:
            publish(self.app, transition())
        except QueueUnavailable as error:
            # What the run committed stays; when its lease ends the claim comes back and finds nothing left to do.
            log.warning("The end of a run was not recorded: %s", error)


def task_of(celery: Celery, kind: str) -> JobTask:
    """The task of a job kind."""
    found: JobTask = celery.tasks[TASK_PREFIX + kind]
    return found


def job(
    *,
    arguments: type[Arguments],
    queue: str,
    while_running: WhileRunning = "rerun",
    immutable: bool = False,
    gathers: bool = False,
) -> Callable[[Callable[[Run, Any], JobOutcome]], JobTask]:
    """Declare a job kind: decorate ``function(run, arguments) -> JobOutcome``.

    Args:
        arguments: the model of its arguments; its ``scope`` is the idempotency key.
        queue: which of the Celery queues carries its messages.
        while_running: what a duplicate that arrives during a run means: ``rerun`` (one more run follows) or ``drop``
            (for jobs whose input cannot change).
        immutable: whether a finished job answers later requests too, while its marker lasts.
        gathers: whether its runs take siblings along (:meth:`Run.take`).
    """

    def declare(function: Callable[[Run, Any], JobOutcome]) -> JobTask:
        task: JobTask = app.task(
            base=JobTask,
            name=TASK_PREFIX + function.__name__,
            arguments=arguments,
            job_queue=queue,
            while_running=while_running,
            immutable=immutable,
            gathers=gathers,
        )(function)
        return task

    return declare


def _as_result(outcome: JobOutcome) -> dict[str, Any]:
    return {
        "status": outcome.status,
        "job_id": outcome.job_id,
        "reasons": list(outcome.reasons),
        **dict(outcome.details),
    }


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


__all__ = ["Arguments", "Claim", "JobTask", "job"]
