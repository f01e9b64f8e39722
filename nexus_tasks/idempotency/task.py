"""JobTask: the Celery task of a job kind. ``apply_async`` asks for a job, and in a worker ``__call__`` runs the job.

The declaration of a kind is in ``kind.py``, the claims (the records of jobs) are in ``claims.py``, and the run of a job
is in ``worker/executor.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import starmap
from typing import Any
from weakref import WeakSet

from celery import Celery, Task
from celery.exceptions import Ignore, Retry
from celery.signals import task_postrun
from kombu.exceptions import OperationalError

from nexus_tasks.errors import ConfigurationError, InvalidInput, JobFailed, QueueUnavailable, UnsupportedOption
from nexus_tasks.idempotency import canvas, celery_states
from nexus_tasks.idempotency.claim import Claimed, Ticket
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.kind import Arguments, JobKind, on_declared
from nexus_tasks.idempotency.producer.message_options import check_message_options
from nexus_tasks.idempotency.producer.result import EagerJobResult, EagerRunResult, JobResult, RunResult
from nexus_tasks.idempotency.producer.wire_format import HEADER, trace_of_message
from nexus_tasks.idempotency.request import URGENT, Flags, Request
from nexus_tasks.idempotency.worker.executor import execute, leave_to_others

# Options of Celery that a job refuses. Celery's limits and priorities would contradict the claims. The sweep would take
# messages in another queue for lost, because it looks for a job's message in the kind's queue only.
REFUSED = ("expires", "time_limit", "soft_time_limit", "priority", "queue", "exchange", "routing_key")
USE_URGENCY = (
    "Use the argument `urgency` where the kind has it: a `live` job waits for no message batch, a `dream` job may. So"
    " that kinds do not wait for each other, start a worker for each queue: `celery worker --queues digest`."
)
# Annotations for all tasks of an application that jobs do not take. An expired message would count as revoked, so that
# its job is dropped.
NOT_ANNOTATED = (
    *REFUSED,
    *("acks_late", "reject_on_worker_lost", "acks_on_failure_or_timeout", "acks_on_failure", "acks_on_timeout"),
    *("typing", "track_started", "throws"),
)
LONGEST_DELAY = 100 * 366 * 86_400.0  # seconds
AT_ONCE = 500  # claims that one script makes; Redis serves no other client while a script runs
_JOB_ID = re.compile(r"[^\s,\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")


class JobTask(Task):  # type: ignore[misc]
    """A Celery task with an idempotency key. :func:`add_tasks` makes one per job kind and application."""

    abstract = True
    typing = False  # the arguments are checked by their model, with better messages
    shared = False  # an application that did not ask for this package's jobs has none of them
    # Claims need the next three lines, even in an application with other defaults.
    acks_late = True
    reject_on_worker_lost = True
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True  # a failed message is not delivered again
    ignore_result = True  # the run row says how a job ended
    # Celery logs no error for the failure of a dead letter's message. The executor logs one for each dead letter, also
    # for those without a message of their own.
    throws = (JobFailed,)
    # Several messages have the id of a job. The `STARTED` of a later message would replace the end that another message
    # has stored as the result, and `.get()` would wait for ever.
    track_started = False
    kind: JobKind

    @property
    def time_limit(self) -> int:
        """366 days. Without this limit Celery's setting ``task_time_limit`` would apply, and could kill a long run."""
        return 366 * 86_400

    @time_limit.setter
    def time_limit(self, seconds: float | None) -> None:
        # Celery's `control.time_limit` answers with this error.
        raise UnsupportedOption(
            f"{self.name} cannot have a time limit of {seconds} s.", remedy="Give its kind a `run_limit`."
        )

    soft_time_limit = time_limit

    @classmethod
    def annotate(cls) -> None:
        """Take the application's ``task_annotations``, apart from those in :data:`NOT_ANNOTATED`."""
        own = {name: cls.__dict__[name] for name in NOT_ANNOTATED if name in cls.__dict__}
        super().annotate()
        for name in NOT_ANNOTATED:
            if name in own:
                setattr(cls, name, own[name])
            elif name in cls.__dict__:
                delattr(cls, name)

    @property
    def engine(self) -> JobEngine:
        """The engine of the deployment that this task's application serves."""
        return engine_of(self.app)

    # --- producers ----------------------------------------------------------------------------------------------------
    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> JobResult:
        """Claim the job and, when it is new, publish it.

        ``countdown`` (seconds) and ``eta`` delay the job: its claim waits in Redis, and no worker holds a timer.

        Raises:
            InvalidInput: an argument is wrong; nothing was queued.
            UnsupportedOption: an option of Celery that jobs refuse, such as ``expires``; nothing was queued.
            NotFound: the namespace does not exist. Only kinds that write a row for the job raise this error. Nothing
                was queued.
            QueueUnavailable: Redis does not answer. If the kind has written a row that wants the job, reconcile asks
                for the job later. Otherwise nothing was queued.
        """
        engine = self.engine
        if options:
            if self.app.conf.task_inherit_parent_priority and self.app.current_worker_task is not None:
                options.pop("priority", None)  # Celery gives a task's own priority to its links and its chain
            refused = [name for name in REFUSED if options.pop(name, None) is not None]
            if refused:
                remedy = USE_URGENCY if refused == ["priority"] else None
                raise UnsupportedOption(f"{', '.join(refused)} cannot be set on {self.kind.name}.", remedy=remedy)
            check_message_options(self.app, options)
        if task_id is not None and not _JOB_ID.fullmatch(task_id):
            raise InvalidInput(
                f"task_id {task_id!r} is no job id: it must have no spaces, commas or control characters."
            )
        delay = _delay(countdown, eta)
        eager = engine.publisher.is_eager
        if eager:
            delay = 0.0  # as in Celery: there is no worker that could wait
        each = self.kind.parse(args, kwargs).each(engine.deployment)
        requests = [
            self.kind.request_for(one, job_id=task_id if i == 0 else None, delay=delay) for i, one in enumerate(each)
        ]
        engine.storage.want(self.kind, each)
        if eager:
            return self._run_here(requests, options)
        ignored = options.get("ignore_result")
        ignored = self.ignore_result if ignored is None else ignored
        if not ignored:
            options["ignore_result"] = False
        if waited_for := canvas.is_canvas(task_id, options):
            self._check_application()
            tickets = canvas.ask(self, requests, options)
        else:
            tickets = self.enqueue(requests, **options)
        result = self._joined(list(map(self._result, requests, tickets)))
        if waited_for:
            result.id = requests[0].id
        result.ignored = ignored
        return result

    def _run_here(self, requests: Sequence[Request], options: Mapping[str, Any]) -> EagerJobResult:
        """Claim the jobs and run them in this process, as ``task_always_eager`` demands."""
        tickets = self.engine.claims.claim(requests)
        results = []
        for request, ticket in zip(requests, tickets, strict=True):
            ended = Task.apply_async(self, kwargs=json.loads(request.args), task_id=request.id, **options)
            results.append(EagerJobResult(ended, self._result(request, ticket)))
            options = {}  # only the first task gets the links
        results[0].joined(results[1:])
        return results[0]

    def apply(self, *args: Any, **options: Any) -> EagerRunResult:
        """Run the job in this process, as Celery's method does. With ``throw=True`` its error is raised here."""
        return EagerRunResult.of(super().apply(*args, **options))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[JobResult]:
        """Ask for many jobs of this kind at once, each given by its keyword arguments.

        This costs less than many calls of ``.delay()``. Each step claims and publishes 500 jobs. When Redis fails after
        some steps, the jobs of these steps stay and run. A second call with all jobs makes no job twice.

        Raises:
            InvalidInput: names the call and its fault; nothing was queued.
            QueueUnavailable: Redis does not answer; some jobs may be queued.
        """
        deployment = self.engine.deployment
        each = [self._numbered(n, call).each(deployment) for n, call in enumerate(calls)]
        arguments = [one for some in each for one in some]
        self.engine.storage.want(self.kind, arguments)
        results = self._enqueued(arguments)
        return [self._joined([next(results) for _ in some]) for some in each]

    def _enqueued(self, arguments: Sequence[Arguments]) -> Iterator[JobResult]:
        """Ask for the jobs, and yield the result of each."""
        # Requests are made step by step: the garbage collector would look through 10,000 of them again and again.
        steps = (
            [self.kind.request_for(one) for one in arguments[start : start + AT_ONCE]]
            for start in range(0, len(arguments), AT_ONCE)
        )
        if len(arguments) <= AT_ONCE:  # no second step could be made meanwhile
            for requests in steps:
                yield from map(self._result, requests, self.enqueue(requests))
            return
        self._check_queue()
        yield from starmap(self._result, self.engine.publisher.enqueue_steps(steps))

    def enqueue(self, requests: Sequence[Request], **options: Any) -> list[Ticket]:
        """Claim many requests of this kind in one step, and publish the new jobs.

        Raises:
            ConfigurationError: the kind's queue is not configured, or workers could not read the message; nothing was
                queued.
            QueueUnavailable: Redis does not answer; nothing was queued.
        """
        self._check_queue()
        return self.engine.publisher.enqueue(requests, **options)

    def existing_result(self, request: Request) -> JobResult:
        """The result of the job that serves ``request`` already. This call asks for no job.

        It is the rerun or the job of the request's claim. Without a claim it is the job of the done marker.
        """
        claims = self.engine.claims
        key = claims.key(request)
        claim = claims.get(key)
        marker = None if claim else claims.marker(key)
        job_id = claim.rerun_id or claim.job_id if claim else marker[0] if marker else request.id
        return self._result(request, Ticket(outcome=Claimed.MERGED, job_id=job_id, asked_at=claims.now()))

    def ask_again(self, args: Mapping[str, Any], *, delay: float, flags: Flags) -> tuple[JobResult, Request]:
        """Ask again for the work of a job that gave up, due in ``delay`` seconds. A done marker does not stop this.

        Args:
            flags: the flags of the job that gave up.

        Returns:
            The result of the job that does the work now, and the request.
        """
        request = replace(self.kind.received(args, delay=delay), anew=True, flags=flags)
        [ticket] = self.enqueue([request])
        return self._result(request, ticket), request

    def retry(self, *_args: Any, **_options: Any) -> Any:
        """Refused. A job raises an error instead, and the error's type decides what happens."""
        raise UnsupportedOption(
            "retry() does not work here.", remedy="Raise a JobError; its type decides what happens."
        )

    def replace(self, sig: Any) -> Any:  # noqa: ARG002
        """Refused, because other requests may wait for this job."""
        raise UnsupportedOption("replace() does not work here.", remedy="Ask for the other job, and return an outcome.")

    def add_to_chord(self, sig: Any, lazy: bool = False) -> Any:  # noqa: ARG002
        """Refused, because the run may serve the messages of several chords."""
        raise UnsupportedOption("add_to_chord() does not work here.", remedy="Ask for the other job by itself.")

    def chunks(self, it: Any, n: int) -> Any:  # noqa: ARG002
        """Refused, because Celery would run the jobs inside a task of its own, without their retries."""
        raise UnsupportedOption("chunks() does not work here.", remedy="Use enqueue_many(), or a group.")

    def map(self, it: Any) -> Any:  # noqa: ARG002
        """Refused for the same reason as :meth:`chunks`."""
        raise UnsupportedOption("map() does not work here.", remedy="Use enqueue_many(), or a group.")

    def starmap(self, it: Any) -> Any:  # noqa: ARG002
        """Refused for the same reason as :meth:`chunks`."""
        raise UnsupportedOption("starmap() does not work here.", remedy="Use enqueue_many(), or a group.")

    def _numbered(self, n: int, call: Mapping[str, Any]) -> Arguments:
        try:
            return self.kind.parse((), call)
        except InvalidInput as error:
            raise InvalidInput(f"calls[{n}]: {error.message}", remedy="Correct the call; nothing was queued.") from None

    def _check_queue(self) -> None:
        # A template exists only if the queue exists.
        if not self.engine.publisher.has_template(self.kind.name, self.kind.queue):
            self._check_application()

    def _check_application(self) -> None:
        queue = self.kind.queue
        if self.app.conf.task_protocol == 1:
            raise ConfigurationError(
                "Messages of Celery's task_protocol 1 have no headers, and a job's message needs one.",
                remedy="Set task_protocol = 2, which is Celery's default.",
            )
        if queue not in self.app.amqp.queues and not self.app.conf.task_create_missing_queues:
            raise ConfigurationError(f"{self.kind.name} has a queue that is not in task_queues: {queue!r}.")

    def _result(self, request: Request, ticket: Ticket) -> JobResult:
        return JobResult(
            ticket.job_id,
            engine=self.engine,
            outcome=ticket.outcome,
            kind=self.kind.name,
            scope=request.scope,
            created=ticket.job_id == request.id,
            asked_at=ticket.asked_at,
        )

    @staticmethod
    def _joined(results: Sequence[JobResult]) -> JobResult:
        return results[0].joined(results[1:]) if len(results) > 1 else results[0]

    def AsyncResult(self, task_id: str, **options: Any) -> RunResult:
        """The result of the job or message with this id. Its ``get()`` also finds jobs whose result Celery ignored."""
        return RunResult(task_id, backend=self.backend, task_name=self.name, app=self.app, **options)

    # --- workers ------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run the job under its claim. Celery's state of the message follows from the returned value or the error.

        See ``celery_states.py``.
        """
        header = self._header()
        request = self._received(args, kwargs, header)
        eager = bool(self.request.is_eager or self.request.called_directly)
        if header.get("canvas"):
            ended = canvas.deliver(self, request, header)
        else:
            published_at, node = str(header.get("published_at", "")), "" if eager else self.request.hostname or ""
            request = replace(request, trace="" if eager else trace_of_message(self.request))
            ended = execute(self.engine, self.kind, request, published_at=published_at, eager=eager, node=node)
        try:
            return celery_states.answer(self, request, ended, eager=eager)
        finally:
            if header.get("canvas") and ended.outcome.status == "dropped":
                canvas.note_accounted(self.engine, request.id)

    def _received(self, args: Sequence[Any], kwargs: Mapping[str, Any], header: Mapping[str, Any]) -> Request:
        """The request of a message.

        Raises:
            InvalidInput: the arguments are wrong, and the message names no claim, so this package did not send it.
                The message leaves a dead letter.
            celery.exceptions.Ignore: another release wrote the arguments. The job waits for a worker that understands
                them.
        """
        try:
            request = self.kind.received(self.kind.named(args, kwargs), job_id=self.request.id)
            # The arguments do not say which queue the message was in, because a claim may have become urgent.
            queue = (self.request.delivery_info or {}).get("routing_key")
            return replace(request, queue=queue) if queue == URGENT else request
        except InvalidInput as error:
            if "key" not in header:
                if not (header or self.request.is_eager or self.request.called_directly):
                    given = dict(zip(self.kind.arguments.model_fields, args, strict=False)) | dict(kwargs)
                    self.engine.storage.undeliverable(self.request.id, self.kind.name, given, error)
                raise
            leave_to_others(self.engine, self.kind.name, str(header["key"]), self.request.id, self.kind.dialect)
            raise Ignore("Another release wrote the arguments.") from error

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Celery's hook after it has sent the links, stored the result and counted the chord's part."""
        if self._header().get("canvas"):
            canvas.note_accounted(self.engine, task_id)

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        """Celery's hook after it has stored the failure and sent the error links.

        Celery also calls this hook when a link could not be sent. ``self.request`` is then no longer the message's. The
        delivery still counts as accounted for, because a second message would send its other links twice. But when
        Redis or the broker did not answer, the delivery does not count, and the sweep sends its message again.
        """
        if self.request.id == task_id and not self._header().get("canvas"):
            return
        if not isinstance(exc, QueueUnavailable | OperationalError):
            canvas.note_accounted(self.engine, task_id)

    def _header(self) -> Mapping[str, Any]:
        """This package's header in the message; empty when there was no message."""
        if self.request.is_eager or self.request.called_directly:
            return {}
        return (self.request.headers or {}).get(HEADER) or self.request.get(HEADER) or {}


@task_postrun.connect  # type: ignore[untyped-decorator]
def drop_tracebacks(sender: Any = None, retval: object = None, **_others: object) -> None:
    """Drop the tracebacks of the error that a job's message ended with, once Celery has stored and logged the error.

    A traceback refers to the frames of its functions and of their callers, and Celery's frame refers to the error. Such
    a circle would keep all that the run has read until the next full garbage collection.
    """
    if not isinstance(sender, JobTask) or sender.request.is_eager:
        return
    errors, known = [retval], set[int]()
    while errors:
        error = errors.pop()
        if isinstance(error, BaseException) and id(error) not in known:
            known.add(id(error))
            error.__traceback__ = None
            errors += [error.__cause__, error.__context__]
        if isinstance(error, Retry):
            errors.append(error.exc)
            error.args = tuple(one for one in error.args if one is not error)  # Celery puts the Retry itself there


_apps: WeakSet[Celery] = WeakSet()  # the applications that have this package's jobs
_additions: list[Callable[[Celery], None]] = []  # each adds a task to an application


def add_tasks(app: Celery) -> None:
    """Give ``app`` a task for every job kind and tick, also for those that are declared later."""
    _apps.add(app)
    for add in _additions:
        add(app)


def on_every_app(add: Callable[[Celery], None]) -> None:
    """Call ``add`` once for every application that has this package's jobs, now and later."""
    _additions.append(add)
    for app in list(_apps):
        add(app)


def task_of(engine: JobEngine, kind: str) -> JobTask:
    """The task of a job kind in the engine's application.

    Raises:
        ConfigurationError: the kind is not declared here.
    """
    task: JobTask = engine.app.tasks[engine.kind(kind).task_name]
    return task


def _add_task(kind: JobKind, app: Celery) -> None:
    def run() -> None:
        """Does nothing. Celery needs a function, and :meth:`JobTask.__call__` does the work.

        The function has no parameters. With two or more, Celery would call it directly when it is an error link,
        instead of sending a message for the job.
        """

    run.__name__ = kind.task_name.rpartition(".")[2]
    run.__doc__ = kind.handler.__doc__
    run.__module__ = kind.handler.__module__
    app.task(base=JobTask, name=kind.task_name, kind=kind, shared=False, **kind.options)(run)


on_declared(lambda kind: on_every_app(partial(_add_task, kind)))


def _delay(countdown: float | None, eta: datetime | None) -> float:
    """The seconds until a job is due; 0 for a moment in the past. An ``eta`` without a time zone is in UTC.

    Raises:
        InvalidInput: one of the two has the wrong type, or is more than ``LONGEST_DELAY`` away.
    """
    if countdown is not None and (isinstance(countdown, bool) or not isinstance(countdown, int | float)):
        raise InvalidInput(f"countdown must be a number of seconds, not {type(countdown).__name__}.")
    if eta is not None and not isinstance(eta, datetime):
        raise InvalidInput(f"eta must be a datetime, not {type(eta).__name__}.")
    delay: float = countdown or 0.0
    if not delay and eta is not None:
        delay = ((eta if eta.tzinfo else eta.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    if not delay <= LONGEST_DELAY:  # also for NaN
        raise InvalidInput(
            "countdown or eta is more than 100 years away, or no number.", remedy="Give a smaller number of seconds."
        )
    return max(float(delay), 0.0)
