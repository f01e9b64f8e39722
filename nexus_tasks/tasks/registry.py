"""``@job`` declares a job kind, and ``@tick`` declares a tick (a short task of beat's schedule).

``@job`` returns the handle of the kind, whose ``.delay()`` asks for a job. A declaration belongs to no deployment: the
handle asks the default deployment, and ``handle.on(deployment)`` is the Celery task of another deployment. To write a
kind, start at ``nexus_tasks/jobs.py``, which shows an example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar

from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from nexus_tasks.deployment import Deployment, default_deployment
from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.engine import engine_of
from nexus_tasks.idempotency.kind import OURS, RUN_LIMIT, Arguments, JobKind, Outbox, declare
from nexus_tasks.idempotency.producer.result import JobResult, RunResult
from nexus_tasks.idempotency.request import Request, WhileRunning
from nexus_tasks.idempotency.task import JobTask, on_every_app
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.storage import audit
from nexus_tasks.tasks.durable import Wanted, outbox_of, settling, want
from nexus_tasks.types import JobOutcome

P = ParamSpec("P")
A = TypeVar("A", bound=Arguments)


class Job(Generic[P]):
    """The handle of a job kind, which asks for jobs of the kind.

    Example::

        job = derive_memory.delay(namespace="acme", memory_id=17)
        job.created, job.wait(timeout=30).status

    The handle also has every other attribute of a Celery task (``apply``, ``AsyncResult``, ``chunks``, …). It takes
    them from the default deployment's task.
    """

    def __init__(self, kind: JobKind) -> None:
        self.kind = kind
        self.__doc__ = kind.handler.__doc__

    def on(self, deployment: Deployment) -> JobTask:
        """The kind's Celery task in a deployment's application."""
        task: JobTask = deployment.app.tasks[self.kind.task_name]
        return task

    @property
    def task(self) -> JobTask:
        """The kind's Celery task in the default deployment's application."""
        return self.on(default_deployment())

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobResult:
        """Ask for the job now.

        Returns:
            The job that does the work; ``created`` is ``False`` when this is the job of an earlier request.

        Raises:
            InvalidInput: an argument is wrong; nothing was queued.
            NotFound: the namespace does not exist. Only kinds that write a row for the job raise this error. Nothing
                was queued.
            QueueUnavailable: Redis does not answer. If the kind has written a row that wants the job, reconcile asks
                for the job later. Otherwise nothing was queued.
        """
        return self.task.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> JobResult:
        """Ask for the job with options of Celery's ``apply_async``; see :meth:`JobTask.apply_async`.

        Args:
            countdown: seconds until the job is due. Default: now.
            eta: the time when the job is due; a time without a zone is UTC. ``countdown`` wins over ``eta``.
            task_id: the caller's own id for the message.
        """
        positional = None if args is None else list(args)
        return self.task.apply_async(positional, kwargs, task_id=task_id, countdown=countdown, eta=eta, **options)

    def want(self, tx: Session | Connection, /, *args: P.args, **kwargs: P.kwargs) -> Wanted:
        """Ask for the job inside a transaction. The kind must be declared with ``durable=True``.

        When the transaction rolls back, there is no job. When the transaction commits, there is a job. If this process
        then dies or Redis is flushed, reconcile asks for the job within about 10 s. Two calls for the same scope make
        one job, with the arguments of the last call.

        Example::

            with Session(engine) as session, session.begin():
                session.add(order)
                count_words.want(session, namespace="acme", session_key="chat-42")

        Args:
            tx: a transaction of the default deployment's database: one of this package, an SQLAlchemy ``Session`` of
                yours, or a ``Connection``. With a ``Connection``, call ``enqueue()`` on the result after the commit.
                Otherwise reconcile enqueues the job within about 10 s.

        Returns:
            The wanted job. With a ``Session`` the job is enqueued after the commit, without a call of ``enqueue()``.

        Raises:
            ConfigurationError: the kind is not durable.
            InvalidInput: an argument is wrong; nothing was written.
            NotFound: there is no such namespace.
        """
        return want(default_deployment(), self.kind, tx, self.kind.named(args, kwargs))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[JobResult]:
        """Ask for many jobs at once; see :meth:`JobTask.enqueue_many`."""
        return self.task.enqueue_many(calls)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Celery's signature of the job, for a canvas (a chord, group or chain)."""
        return self.task.s(*args, **kwargs)

    def si(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Celery's immutable signature of the job, which takes no result of the task before it."""
        return self.task.si(*args, **kwargs)

    def AsyncResult(self, job_id: str) -> RunResult:
        """The result of a job that was asked for, by its id.

        Its ``get()`` raises :class:`NotFound` when neither Redis nor Postgres knows the job. A later step of
        a chain was not asked for yet. For such a step use the result of the canvas, or ``app.AsyncResult``: they wait.
        """
        result: RunResult = self.task.AsyncResult(job_id)
        result.asked = True
        return result

    def request_for(self, arguments: Arguments, **options: Any) -> Request:
        """See :meth:`JobKind.request_for`."""
        return self.kind.request_for(arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(JobTask, name):
            raise AttributeError(name)
        return getattr(self.task, name)

    def __repr__(self) -> str:
        return f"<job {self.kind.name}>"


def job(
    *,
    arguments: Callable[P, A],
    queue: str,
    name: str | None = None,
    while_running: WhileRunning = "rerun",
    immutable: bool = False,
    gathers: str = "",
    awaits: str = "",
    live_ends_wait: str = "",
    outbox: Outbox | None = None,
    durable: bool = False,
    probe: Callable[[Deployment], None] | None = None,
    on_dead: Callable[[Any, Any, Any], Callable[[], None] | None] | None = None,
    announced: bool = True,
    run_limit: float = RUN_LIMIT,
    **options: Any,
) -> Callable[[Callable[[Run, A], JobOutcome]], Job[P]]:
    """Declare a job kind: decorate ``handler(run, arguments) -> JobOutcome``.

    Args:
        arguments: the model of the kind's arguments; its ``scope`` names the fields that make two requests the same
            work.
        queue: the Celery queue for messages of the kind.
        name: Celery's name of the kind's task; it needs a dot. By default it is the import path of the handler, and for
            this package's own kinds ``nexus_tasks.<handler>``.
        while_running: the meaning of a request that arrives during a run: ``rerun`` (one more run follows) or ``drop``
            (for jobs whose input cannot change).
        immutable: whether a finished job answers later requests too, while its done marker lasts (15 minutes).
        gathers: a wait reason, for a kind whose runs take siblings along (:meth:`Run.take`). A run may take the
            siblings that wait for this reason.
        awaits: a wait reason, for a kind whose jobs wait for the end of other jobs, as a digest waits for derivations.
            Jobs that wait for this reason do not count towards ``limits.NAMESPACE_JOBS``, so that they leave room for
            the jobs that they wait for.
        live_ends_wait: a wait reason. A request of urgency ``live`` makes a job due at once that waits for this reason.
        outbox: the rows in Postgres that want jobs of the kind, so that the jobs survive a flush of Redis.
        durable: whether callers can ask for jobs of the kind inside a transaction (:meth:`Job.want`), by rows in
            ``wanted_jobs``. A durable kind takes no ``outbox``.
        probe: raises an error while the cause of a pause lasts. Without a probe, a paused kind is tried every 60 s.
        on_dead: ``(deployment, tx, claim)``, called in the transaction of a dead letter. It returns a step to take
            after the commit, or ``None``.
        announced: whether webhooks are told of the kind's dead letters.
        run_limit: seconds that a run may last. A longer run can commit nothing and counts as an unknown error, and the
            job runs again elsewhere.
        options: further options of the kind's Celery task.

    Raises:
        ConfigurationError: another function declares a kind of this name, the name has no dot, the scope names a field
            that ``arguments`` lacks, the kind is durable and has an outbox of its own, or ``run_limit`` is not above 0.
    """

    def declared(handler: Callable[[Run, A], JobOutcome]) -> Job[P]:
        model: Any = arguments
        function: Any = handler
        if unknown := set(model.scope) - set(model.model_fields):
            raise ConfigurationError(
                f"The scope of {function.__name__} names {', '.join(sorted(unknown))}, which {model.__name__} lacks.",
                remedy="Let `scope` name fields of the arguments.",
            )
        if durable and outbox is not None:
            raise ConfigurationError(
                f"{function.__name__} is durable and has an outbox of its own.", remedy="Choose one of the two."
            )
        if not run_limit > 0:
            raise ConfigurationError(
                f"The run_limit of {function.__name__} is {run_limit} s.", remedy="Give it a number of seconds above 0."
            )
        if name is not None and "." not in name:
            raise ConfigurationError(
                f"The name {name!r} of {function.__name__} has no dot, so it looks like a kind of nexus-tasks itself.",
                remedy="Name it like a Celery task: `shop.recount`.",
            )
        ours = function.__module__.startswith(OURS)
        task_name = name or (OURS + function.__name__ if ours else f"{function.__module__}.{function.__name__}")
        kind = JobKind(
            name=task_name.removeprefix(OURS) if "." not in task_name.removeprefix(OURS) else task_name,
            task_name=task_name,
            declared_at=f"{function.__module__}:{function.__qualname__}",
            arguments=model,
            handler=_as_worker(settling(handler) if durable else handler),
            queue=queue,
            while_running=while_running,
            immutable=immutable,
            gathers=gathers,
            awaits=awaits,
            live_ends_wait=live_ends_wait,
            outbox=outbox_of(lambda: kind) if durable else outbox,
            durable=durable,
            probe=probe,
            on_dead=on_dead,
            announced=announced,
            run_limit=run_limit,
            options=options,
        )
        declare(kind)
        return Job(kind)

    return declared


def _as_worker(handler: Callable[[Run, A], JobOutcome]) -> Callable[[Run, A], JobOutcome]:
    """Let the audit log attribute what a job does to a worker."""

    @functools.wraps(handler)
    def handle(run: Run, arguments: A) -> JobOutcome:
        with audit.acting(audit.WORKER):
            return handler(run, arguments)

    return handle


def tick(function: Callable[[Deployment], Any]) -> Callable[[Deployment], Any]:
    """Declare a tick: a task of beat's schedule, named ``nexus_tasks.<function>``.

    The function is called with the deployment of the Celery application that runs it.
    """

    def add(app: Celery) -> None:
        def run() -> Any:
            return function(engine_of(app).deployment)

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        app.task(name=OURS + function.__name__, shared=False)(run)

    on_every_app(add)
    return function
