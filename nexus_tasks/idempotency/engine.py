"""The job engine: one deployment's claims, its Celery application, and the storage behind its jobs, in one process.

Producers and workers reach all parts through the engine. No global variable refers to an engine: the deployment keeps
it, and a task finds it through the Celery application (:func:`engine_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from celery import Celery

from nexus_tasks.errors import ConfigurationError
from nexus_tasks.idempotency.claim import Claim, Wakeup
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.idempotency.kind import Arguments, JobKind
from nexus_tasks.idempotency.producer.publisher import Publisher
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.active_runs import ActiveRuns
from nexus_tasks.idempotency.worker.circuit_breaker import CircuitBreaker
from nexus_tasks.idempotency.worker.heartbeat import Heartbeat
from nexus_tasks.idempotency.worker.holder import LeaseHolder
from nexus_tasks.idempotency.worker.isolation import Isolation
from nexus_tasks.idempotency.worker.vitals import Vitals
from nexus_tasks.types import JobOutcome

_FIND_ENGINE = "nexus_find_engine"  # the attribute of a Celery application that leads to its engine


class JobStorage(Protocol):
    """The storage behind jobs, as the job engine uses it. ``nexus_tasks/outbox.py`` implements it with Postgres."""

    def dead_letter(self, claim: Claim, error: BaseException | None) -> None:
        """Commit a dead letter for ``claim``. A second call changes nothing.

        Args:
            error: the error of the last run; ``None`` when its worker died.
        """
        ...

    def may_quote_erased(self, error: BaseException) -> bool:
        """Whether ``error`` may quote a memory that was erased since. ``True`` when storage cannot be asked."""
        ...

    def undeliverable(self, job_id: str, kind: str, args: Mapping[str, Any], error: BaseException) -> None:
        """Commit a dead letter for a message with wrong arguments and no claim, if its namespace exists."""
        ...

    def withdraw(self, claims: Sequence[Claim]) -> None:
        """Commit that the work of ``claims`` is not wanted any more. The caller drops the claims afterwards."""
        ...

    def ended(self, claim: Claim, *, since: float | None) -> JobOutcome | None:
        """How the job of ``claim`` has ended, or ``None`` while it is still to be done.

        Args:
            since: seconds since the epoch, by the Redis server's clock. If given, a run of the same work that began
                after this time counts too.
        """
        ...

    def outcome(self, job_id: str, kind: str, scope: str, since: float) -> JobOutcome | None:
        """How the job ended: its own run or dead letter, else the latest run of the same work after ``since``.

        The answer is ``None`` when there is none of them.

        Args:
            since: seconds since the epoch, by the Redis server's clock.
        """
        ...

    def wanted(self, kind: JobKind, after: int, limit: int) -> Sequence[tuple[int, Arguments | Request | None]]:
        """Up to ``limit`` wanted rows of a kind behind the cursor ``after``; see :class:`Outbox`."""
        ...

    def want(self, kind: JobKind, arguments: Sequence[Arguments]) -> None:
        """Write the rows that want jobs of a kind; see :class:`Outbox`. While storage is away no row is written."""
        ...

    def release_ended_runs(self) -> Iterator[list[Wakeup]]:
        """Give back what runs hold in storage that have ended without giving it back, such as those of dead workers.

        Yields wake-ups to publish: of claims that waited for it.
        """
        ...

    def verify(self) -> None:
        """Raise :class:`ForeignDatabase` when the claims belong to another storage."""
        ...

    def newest(self, kind: JobKind, rows: int) -> int | None:
        """The cursor behind which the newest ``rows`` wanted rows of a kind are.

        It is ``None`` when the kind's outbox has no function ``newest``.
        """
        ...

    def cap(self, namespace: str) -> int:
        """How many runs the namespace may have at a time."""
        ...

    def answers(self) -> bool:
        """Whether storage can be reached, and takes writes, now."""
        ...

    def probe(self, kind: str) -> None:
        """Raise an error while the cause lasts for which ``kind`` was paused."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The settings that bound runs."""

    lease: float  # seconds that a running claim stays valid without a heartbeat
    max_attempts: int  # crashes plus unknown errors before a job is a dead letter
    retry_for: float  # seconds for which passing errors are retried
    shutdown_grace: float = 25.0  # seconds for which a worker that shuts down waits for its runs


class JobEngine:
    """One deployment's jobs in one process. After a fork the child makes an engine of its own.

    Args:
        app: the Celery application whose broker carries the wake-ups.
        deployment: handlers get it as ``run.deployment``.
        claims: the claims of the deployment, for producers and runs.
        heartbeat_claims: the same claims through a client whose socket timeout is shorter than a third of a lease.
        kinds: every declared job kind by its name.
        isolation: runs jobs that have crashed twice in processes of their own.
        holder: this process, as the holder of its runs' leases.
    """

    def __init__(
        self,
        app: Celery,
        *,
        deployment: Any,
        claims: Claims,
        heartbeat_claims: Claims,
        storage: JobStorage,
        limits: Limits,
        kinds: Callable[[], Mapping[str, JobKind]],
        isolation: Isolation,
        holder: LeaseHolder,
    ) -> None:
        self.app = app
        self.deployment = deployment
        self.claims = claims
        self.storage = storage
        self.limits = limits
        self.isolation = isolation
        self.holder = holder
        self.publisher = Publisher(app, claims)
        self.runs = ActiveRuns()
        self.vitals = Vitals()
        self.heartbeat = Heartbeat(heartbeat_claims, limits.lease, self.runs.end_over_limit, self.vitals)
        self.messages_taken = 0  # by the consumer of this process, also messages that it moved aside
        self._kinds = kinds

    @cached_property
    def breaker(self) -> CircuitBreaker:
        """Keeps jobs from beginning while storage is away."""
        return CircuitBreaker(self.storage.answers)

    def kind(self, name: str) -> JobKind:
        """The job kind of this name.

        Raises:
            ConfigurationError: neither this process nor the modules that Celery's ``imports`` name declare it.
        """
        if name not in self._kinds():
            self.app.loader.import_default_modules()  # a worker has imported these already, a command has not
        found = self._kinds().get(name)
        if found is None:
            raise ConfigurationError(
                f"There is no job kind {name!r} here.",
                remedy="Name the module that declares it in `imports` of your celeryconfig.py. Let every process read"
                " it: `export CELERY_CONFIG_MODULE=celeryconfig PYTHONPATH=.` in its folder.",
            )
        return found

    def kinds(self) -> Mapping[str, JobKind]:
        """Every job kind that this process declares, by name."""
        return self._kinds()

    def close(self) -> None:
        """Stop the heartbeat's thread."""
        self.heartbeat.stop()


def attach(app: Celery, find: Callable[[], JobEngine]) -> None:
    """Let the tasks and worker steps of ``app`` find their engine.

    Raises:
        ConfigurationError: another deployment's jobs are registered in ``app`` already.
    """
    if has_jobs(app):
        raise ConfigurationError(
            f"The Celery application {app.main!r} has the jobs of a deployment already.",
            remedy="Register one deployment per application.",
        )
    setattr(app, _FIND_ENGINE, find)


def has_jobs(app: Celery) -> bool:
    """Whether a deployment's jobs are registered in ``app``."""
    return getattr(app, _FIND_ENGINE, None) is not None


def engine_of(app: Celery) -> JobEngine:
    """The engine of the deployment whose jobs are registered in ``app``.

    Raises:
        ConfigurationError: ``app`` has no jobs of a deployment, or a setting is wrong.
    """
    find: Callable[[], JobEngine] | None = getattr(app, _FIND_ENGINE, None)
    if find is None:
        raise ConfigurationError(
            f"The Celery application {app.main!r} has no jobs of nexus-tasks.",
            remedy="Call `nexus_tasks.register(app)` where the application is made.",
        )
    return find()
