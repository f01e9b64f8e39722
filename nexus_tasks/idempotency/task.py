"""The task class behind every job kind: claims in the producer, runs under a lease in the worker."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from celery import Celery, Task
from pydantic import BaseModel, ConfigDict, ValidationError

from nexus_tasks.celery import app
from nexus_tasks.errors import ConfigurationError, InvalidInput, JobFailed, UnsupportedOption, faults
from nexus_tasks.idempotency import canvas
from nexus_tasks.idempotency.binding import binding
from nexus_tasks.idempotency.claim import Claim, Claimed, Ticket, Wakeup
from nexus_tasks.idempotency.producer.publisher import TASK_PREFIX, enqueue
from nexus_tasks.idempotency.producer.result import JobResult
from nexus_tasks.idempotency.producer.wire_format import HEADER, header
from nexus_tasks.idempotency.request import Flags, Request, WhileRunning, canonical, compact
from nexus_tasks.idempotency.worker.executor import work
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.types import JobOutcome

# Celery's own means to the same ends would fight with the claims, and the sweep looks for messages in the kind's queue.
REFUSED = ("expires", "time_limit", "soft_time_limit", "priority", "queue", "exchange", "routing_key")
# Claims are made this many at a time: Redis serves nobody else during a script.
AT_ONCE = 500
LIVE = Flags(urgency="live")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
_JOB_ID = re.compile(r"[^\s,]{1,255}")


class Arguments(BaseModel):
    """A job's arguments, validated in the producer. ``scope`` names the fields that make two requests the same work."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    scope: ClassVar[tuple[str, ...]]
    namespace: str

    def flags(self) -> Flags:
        """What is merged when this request meets another for the same work."""
        return LIVE

    def each(self) -> Sequence[Self]:
        """The requests this one stands for, when a default means several; usually itself."""
        return [self]


class JobTask(Task):  # type: ignore[misc]
    """A Celery task with an idempotency key. Declared with :func:`job`, never subclassed by hand."""

    abstract = True
    throws = (JobFailed,)  # expected: a dead letter was logged when it was written
    typing = False  # the arguments are checked by their model, with better messages
    kind: str
    arguments: type[Arguments]
    job_queue: str
    while_running: WhileRunning
    immutable: bool
    gathers: bool

    # --- producers ----------------------------------------------------------------------------------------------------
    def parse(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Arguments:
        """The validated arguments of a call.

        Raises:
            InvalidInput: names the field and what is wrong with it.
        """
        named = self._named(args, kwargs)
        return self._validated(lambda: self.arguments.model_validate(named))

    def _named(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        names = list(self.arguments.model_fields)
        if len(args or ()) > len(names):
            raise InvalidInput(f"{self.kind} takes at most {len(names)} arguments.")
        named = dict(zip(names, args or (), strict=False))
        if twice := sorted(named.keys() & (kwargs or {}).keys()):
            raise InvalidInput(f"{self.kind}: {', '.join(twice)} is given twice.")
        return named | dict(kwargs or {})

    def _validated(self, validate: Callable[[], Arguments]) -> Arguments:
        try:
            return validate()
        except ValidationError as error:
            raise InvalidInput(f"{self.kind}: {faults(error.errors())}.") from None

    def request_for(
        self, arguments: Arguments, *, job_id: str | None = None, delay: float = 0.0, wait_reason: str = "delay"
    ) -> Request:
        """The request that asks for this job with ``arguments``, due in ``delay`` seconds."""
        named = arguments.model_dump(mode="json")
        args = compact(named)
        if "\\u0000" in args and _NUL.search(args):
            raise InvalidInput(f"{self.kind}: an argument holds a NUL, which Postgres cannot store.")
        return Request(
            id=job_id or str(uuid.uuid4()),
            kind=self.kind,
            namespace=arguments.namespace,
            queue=self.job_queue,
            scope=canonical({name: named[name] for name in arguments.scope}),
            args=args,
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
        refused = [name for name in REFUSED if options.pop(name, None) is not None]
        if refused:
            raise UnsupportedOption(f"{', '.join(refused)} cannot be set on {self.kind}.")
        if task_id is not None and not _JOB_ID.fullmatch(task_id):
            raise InvalidInput(f"task_id {task_id!r} is no job id: it must have no spaces or commas.")
        delay = countdown or ((_utc(eta) - datetime.now(UTC)).total_seconds() if eta else 0.0)
        if delay > 0 and self.app.conf.task_always_eager:
            delay = 0.0  # as Celery has it: nobody comes by later
        each = self.parse(args, kwargs).each()
        requests = [
            self.request_for(one, job_id=task_id if i == 0 else None, delay=max(delay, 0.0))
            for i, one in enumerate(each)
        ]
        if waited_for := canvas.is_canvas(task_id, options):
            self._check_queue()
            tickets = canvas.ask(self, requests, options)
        else:
            tickets = self.enqueue(requests, **options)
        result = self._joined(requests, tickets)
        if waited_for:
            result.id = requests[0].id
        result.ignored = options.get("ignore_result", self.ignore_result)
        return result

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[JobResult]:
        """Ask for many jobs of this kind at once, each given by its keyword arguments: one ``.delay()`` each, cheaper.

        They are claimed and published 500 at a time. When that fails on the way, what was claimed before stays and
        runs; asking for all of them again makes none of these twice.

        Raises:
            InvalidInput: names the call and what is wrong with it; nothing was queued.
            QueueUnavailable: Redis does not answer; some may be queued.
        """
        asked = [[self.request_for(one) for one in self._numbered(n, call).each()] for n, call in enumerate(calls)]
        requests = [request for each in asked for request in each]
        tickets = (
            ticket
            for start in range(0, len(requests), AT_ONCE)
            for ticket in self.enqueue(requests[start : start + AT_ONCE])
        )
        return [self._joined(each, [next(tickets) for _ in each]) for each in asked]

    def _numbered(self, n: int, call: Mapping[str, Any]) -> Arguments:
        try:
            return self.parse((), call)
        except InvalidInput as error:
            raise InvalidInput(f"calls[{n}]: {error.message}", remedy="Correct it; nothing was queued.") from None

    def enqueue(self, requests: Sequence[Request], **options: Any) -> list[Ticket]:
        """Claim many requests of this kind in one step and publish those that are new.

        Raises:
            ConfigurationError: no worker could read the kind's queue; nothing was queued.
            QueueUnavailable: Redis does not answer; nothing was queued.
        """
        if not binding().templates.get(self.kind):  # whose making has met the queue
            self._check_queue()
        return enqueue(self.app, requests, **options)

    def _check_queue(self) -> None:
        if self.job_queue not in self.app.amqp.queues and not self.app.conf.task_create_missing_queues:
            raise ConfigurationError(f"{self.kind} has a queue that is not in task_queues: {self.job_queue!r}.")

    def send(self, wakeup: Wakeup, **options: Any) -> None:
        """Publish one wake-up, past the claim: it has one already."""
        # A claim made by a release whose queue is gone travels in today's.
        queue = wakeup.queue if wakeup.queue in self.app.amqp.queues else self.job_queue
        options = {**(wakeup.options or {}), **options}
        if wakeup.outcome:
            options["add_to_parent"] = False  # whose run has ended here is not who asked for it
        super().apply_async(
            kwargs=dict(wakeup.args),
            task_id=wakeup.job_id,
            queue=queue,
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
            asked_at=ticket.asked_at,
        )

    def _joined(self, requests: Sequence[Request], tickets: Sequence[Ticket]) -> JobResult:
        results = [self._result(request, ticket) for request, ticket in zip(requests, tickets, strict=True)]
        return results[0].joined(results[1:])

    def standing(self, request: Request) -> JobResult:
        """The job that stands for ``request`` now, without asking for one: the claim's, else the one just finished."""
        claims = binding().claims
        key = claims.key(request)
        claim = claims.get(key)
        marker = None if claim else claims.marker(key)
        job_id = claim.rerun_id or claim.job_id if claim else marker[0] if marker else request.id
        return self._result(request, Ticket(outcome=Claimed.MERGED, job_id=job_id, asked_at=claims.now()))

    def anew(self, args: Mapping[str, Any], *, delay: float) -> tuple[JobResult, Request]:
        """Ask again for work that gave up, past its done marker, due in ``delay`` seconds; also returns the request."""
        request = self.request_for(self.load(args), delay=delay).renewed()
        [ticket] = self.enqueue([request])
        return self._result(request, ticket), request

    def retry(self, *_args: Any, **_options: Any) -> Any:
        """Refused: raise a typed error instead, its type decides."""
        raise UnsupportedOption("retry() does not work here.", remedy="Raise a JobError; its type decides.")

    # --- workers ------------------------------------------------------------------------------------------------------
    def load(self, args: Mapping[str, Any]) -> Arguments:
        """The arguments of a claim or a message: what JSON made of times, tuples and the like is read back.

        Raises:
            InvalidInput: they were written by a version that meant something else.
        """
        return self._validated(lambda: self.arguments.model_validate_json(json.dumps(dict(args))))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run the job under its claim; returns its outcome as Celery's result."""
        told = self._told()
        request = self.request_for(self.load(self._named(args, kwargs)), job_id=self.request.id)
        if told.get("canvas"):
            outcome = canvas.deliver(self, request, told)
        else:
            eager = bool(self.request.is_eager or self.request.called_directly)
            outcome = work(self, request, published_at=str(told.get("published_at", "")), eager=eager)
            if eager and self.app.conf.task_always_eager:
                canvas.alive_or_raise(self, request, outcome)
        return {
            "status": outcome.status,
            "job_id": outcome.job_id,
            "reasons": list(outcome.reasons),
            **dict(outcome.details),
        }

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        """Celery's hook after it has stored the result, counted the chord's part and sent the links."""
        if self._told().get("canvas"):
            canvas.accounted(task_id)

    def _told(self) -> Mapping[str, Any]:
        """What the message says beside the arguments; nothing when there was no message."""
        if self.request.is_eager or self.request.called_directly:
            return {}
        return (self.request.headers or {}).get(HEADER) or self.request.get(HEADER) or {}


def task_of(celery: Celery, kind: str) -> JobTask:
    """The task of a job kind.

    Raises:
        ConfigurationError: neither this process nor the modules that Celery's ``imports`` name declare it.
    """
    if TASK_PREFIX + kind not in celery.tasks:
        celery.loader.import_default_modules()  # a worker has done so, a command has not
    found: JobTask | None = celery.tasks.get(TASK_PREFIX + kind)
    if found is None:
        raise ConfigurationError(
            f"There is no job kind {kind!r} here.",
            remedy="Name the module that declares it in `imports` of your celeryconfig.py.",
        )
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
            kind=function.__name__,
            arguments=arguments,
            job_queue=queue,
            while_running=while_running,
            immutable=immutable,
            gathers=gathers,
        )(function)
        return task

    return declare


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


__all__ = ["Arguments", "Claim", "JobTask", "job"]
