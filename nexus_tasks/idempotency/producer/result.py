"""``JobResult``: the result that ``.delay()`` returns. It extends Celery's ``AsyncResult`` with the job's outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from celery import states
from celery.exceptions import Retry, TaskRevokedError, TimeoutError
from celery.result import AsyncResult, EagerResult, assert_will_not_block

from nexus_tasks.errors import JobFailed, NotFound, WaitTimeout
from nexus_tasks.idempotency.claim import Claim, Claimed
from nexus_tasks.idempotency.claim_index import ClaimIndex
from nexus_tasks.idempotency.engine import JobEngine, engine_of
from nexus_tasks.idempotency.request import claim_key
from nexus_tasks.types import JobOutcome, Status

_FIRST_LOOK, _LONGEST_PAUSE = 0.02, 0.5


class JobResult(AsyncResult):  # type: ignore[misc]
    """A job that was asked for.

    ``job_id`` is the id of the job that does the work. For a duplicate request ``job_id`` is the id of the earlier job.
    Usually ``id`` is equal to ``job_id``. When Celery waits for the message itself (a chord, a link or an explicit
    ``task_id``), ``id`` is the id of the message. Celery's results and ``revoke`` need the id of the message.
    """

    def __init__(
        self,
        id: str,
        *,
        engine: JobEngine,
        outcome: Claimed,
        kind: str,
        scope: str,
        created: bool,
        asked_at: float,
        **options: Any,
    ) -> None:
        super().__init__(id, app=engine.app, **options)
        self._engine = engine
        self.job_id = str(id)
        self.outcome = outcome
        self.kind = kind
        self.scope = scope
        self.created = created
        self.parts: tuple[JobResult, ...] = ()
        self._asked_at = asked_at  # seconds since the epoch, by the Redis server's clock

    def __del__(self) -> None:
        # Celery's method cancels the wait for a result. Usually the result is ignored, and no wait exists.
        if not self.ignored:
            super().__del__()

    def joined(self, others: Sequence[JobResult]) -> JobResult:
        """Make this result stand for ``others`` too: :meth:`wait` then waits for all of them. Returns this result."""
        self.parts = tuple(others)
        self.created = self.created or any(other.created for other in others)
        return self

    def wait(self, timeout: float | None = None, **_options: Any) -> JobOutcome:
        """Wait until the job has ended. Returns the job's outcome.

        Raises:
            JobFailed: the job is a dead letter.
            WaitTimeout: the job did not end within ``timeout`` seconds. The job goes on. The error is also a
                :class:`TimeoutError`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        outcomes = [part._await(deadline) for part in (self, *self.parts)]
        for outcome in outcomes:
            if outcome.status == "dead":
                raise job_failed(self.kind, outcome)
        return outcomes[0]

    def _await(self, deadline: float | None) -> JobOutcome:
        pause = _FIRST_LOOK
        while True:
            outcome = self.poll()
            if outcome:
                return outcome
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"{self.kind} {self.job_id} has not ended in time.")
            time.sleep(pause if deadline is None else min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def poll(self) -> JobOutcome | None:
        """The outcome of the job, or ``None`` while the job has not ended."""
        # The claim must be read before the run row. If the claim is gone, the run row is already committed, so that the
        # later read finds the run row.
        claims = self._engine.claims
        key = claim_key(claims.prefix, self.kind, self.scope)
        claim = claims.get(key)
        mine = claim and self.job_id in (claim.job_id, claim.rerun_id, *claim.also)
        marker = None if claim else claims.marker(key)
        outcome = self._engine.storage.outcome(self.job_id, self.kind, self.scope, self._asked_at)
        if outcome and (outcome.job_id == self.job_id or not mine):
            return outcome
        if marker:  # there is no run row, because the job was dropped or its kind writes none
            return JobOutcome(status=cast(Status, marker[1]), job_id=marker[0])
        return None


class EagerRunResult(EagerResult):  # type: ignore[misc]
    """Celery's result of a job that ran in this process. Its state is that of the job's message in a worker.

    ``RETRY``: the job waits, for example because its kind is paused. ``IGNORED``: another run has the job. ``REVOKED``:
    the job was dropped.
    """

    @classmethod
    def of(cls, ended: EagerResult) -> EagerRunResult:
        """The result that Celery made. Celery has no state ``REVOKED`` for a call that it ran itself."""
        state = states.REVOKED if isinstance(ended._result, TaskRevokedError) else ended.state
        return cls(ended.id, ended._result, state, traceback=ended.traceback, name=ended._name)

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> Any:
        """The job's outcome. With ``propagate`` the error of a job without an outcome is raised, else returned.

        Raises:
            WaitTimeout: the job has not ended, because it waits or because another run has it.
            JobFailed: the job is a dead letter.
            celery.exceptions.TaskRevokedError: the job was dropped.
        """
        if self.state not in (states.RETRY, states.IGNORED):
            return super().get(timeout, propagate=propagate, **options)
        why = self.result
        error = WaitTimeout(f"{self._name} {self.id} has not ended: {why.exc if isinstance(why, Retry) else why}")
        if propagate:
            raise error
        return error

    def wait(self, timeout: float | None = None, **options: Any) -> Any:
        """Another name of :meth:`get`, as in Celery."""
        return self.get(timeout, **options)


class EagerJobResult(EagerRunResult, JobResult):
    """A job that ran in this process (``task_always_eager``): Celery's ``EagerResult`` that is also a ``JobResult``."""

    def __init__(self, ended: EagerResult, asked: JobResult) -> None:
        EagerResult.__init__(self, ended.id, ended._result, ended.state, traceback=ended.traceback, name=ended._name)
        self._engine, self._asked_at = asked._engine, asked._asked_at
        self.job_id, self.outcome, self.created = asked.job_id, asked.outcome, asked.created
        self.kind, self.scope, self.parts = asked.kind, asked.scope, ()

    wait = JobResult.wait  # `EagerRunResult.wait` is another name of `get`


class RunResult(AsyncResult):  # type: ignore[misc]
    """The result of a job of which only the id is known.

    Celery stores no result of a job unless it was asked for with ``ignore_result=False``. ``get()`` then waits for the
    job's run row or dead letter.
    """

    # Whether the job was asked for, so that Redis or Postgres must know it. It is not set for a result of a canvas,
    # because a chain asks for its later steps only when the earlier steps have ended.
    asked = False

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> Any:
        """Wait for the result that Celery stores, or for the outcome of the job's run. Returns the first of the two.

        Args:
            timeout: seconds.
            propagate: whether to raise the error of a dead letter or of a dropped job. Otherwise it is returned.

        Raises:
            JobFailed: the job is a dead letter, and ``propagate`` is set.
            celery.exceptions.TaskRevokedError: the job was dropped, and ``propagate`` is set.
            NotFound: the job is not queued any more and has left no outcome. It was forgotten, or its kind writes no
                run rows.
            celery.exceptions.TimeoutError: there was neither a result nor an outcome within ``timeout``.
        """
        if options.get("disable_sync_subtasks", True):
            assert_will_not_block()
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        seen: Claim | None = None
        while not self.ready():
            if propagate and self.parent:
                self._maybe_reraise_parent_error()
            outcome = self._outcome()
            if outcome is None:
                claim = self._claim()
                seen, self.asked = claim or seen, self.asked or claim is not None
                if claim is None and self.asked and not self._has_delivery() and not self.ready():
                    outcome = self._last_outcome(seen)
            if outcome and (failure := _failure(outcome)):
                if propagate:
                    raise failure
                return failure
            if outcome:
                return as_result(outcome)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"Celery has no result of {self.id}, and there is no run row of that id.")
            time.sleep(pause if deadline is None else min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return super().get(timeout, propagate=propagate, **options)

    def _outcome(self) -> JobOutcome | None:
        return engine_of(self.app).storage.outcome(str(self.id), "", "", 0.0)

    def _claim(self) -> Claim | None:
        return ClaimIndex(engine_of(self.app).claims).find(str(self.id))

    def _has_delivery(self) -> bool:
        return engine_of(self.app).claims.has_delivery(str(self.id))

    def _last_outcome(self, seen: Claim | None) -> JobOutcome:
        """The outcome of a job whose claim is gone. A run commits its row before it ends its claim.

        Args:
            seen: the job's claim, if there was one at an earlier look.

        Raises:
            NotFound: there is no outcome.
        """
        marker = engine_of(self.app).claims.marker(seen.key) if seen else None
        if outcome := self._outcome():
            return outcome
        if seen and marker and marker[0] in (seen.job_id, self.id):
            return JobOutcome(status=cast(Status, marker[1]), job_id=marker[0])
        raise NotFound(
            f"Job {self.id} is not queued any more, and there is neither a run row nor a dead letter of it.",
            remedy="It was forgotten, or its kind writes no run rows. Ask for it again if it is needed. To"
            " wait for a job of a kind without run rows, use the result of `.delay()`.",
        )


def as_result(outcome: JobOutcome) -> dict[str, Any]:
    """An outcome as the result of a Celery task."""
    return {
        "status": outcome.status,
        "job_id": outcome.job_id,
        "reasons": list(outcome.reasons),
        **dict(outcome.details),
    }


def job_failed(kind: str, letter: JobOutcome) -> JobFailed:
    """The error of a job that is a dead letter."""
    error_type, text = letter.details.get("error_type"), letter.details.get("error", "no error text")
    return JobFailed(f"{kind} {letter.job_id} is a dead letter: {f'{error_type}: {text}' if error_type else text}")


def _failure(outcome: JobOutcome) -> Exception | None:
    """The error that ``get()`` raises for a job that did not succeed."""
    if outcome.status == "dead":
        return job_failed("Job", outcome)
    return TaskRevokedError("The job was dropped.") if outcome.status == "dropped" else None
