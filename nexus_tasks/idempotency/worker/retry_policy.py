"""The retry policy: the type of an error decides what happens to its job. See the table in ``docs/jobs.md``."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nexus_tasks.errors import (
    ConfigurationError,
    JobError,
    Misconfigured,
    Permanent,
    QueueUnavailable,
    SchemaOutdated,
    Transient,
    UnsupportedOption,
)
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.types import clean_text

BACKOFF_FIRST = 2.0  # seconds
# Seconds between two tests whether the cause of a job kind's pause is gone. A job that pauses its kind waits this long.
PROBE_EVERY = 60.0

# These errors do not come from the job, but from a setting of the deployment or an outdated database schema.
MISCONFIGURED = (Misconfigured, ConfigurationError, SchemaOutdated)
LONGEST_WAIT = 100 * 366 * 86_400.0  # seconds; a later time could not be shown
HOPELESS = (Permanent, UnsupportedOption)  # the next attempt would end in the same way
PASSING = (Transient, QueueUnavailable)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to a claim: it waits (``seconds``, for ``reason``), or becomes a dead letter (``dead``)."""

    reason: str = ""
    seconds: float = 0.0
    detail: str = ""
    retry: bool = False  # the run failed and is retried
    error: bool = False  # the cause of the failure is unknown, so the run counts against `max_attempts`
    pause: bool = False  # the whole job kind pauses
    dead: bool = False


def decide(error: BaseException, claim: Claim, *, now: float, max_attempts: int, retry_for: float) -> Decision:
    """Decide what happens to a claim after its run raised ``error``.

    Args:
        now: seconds since the epoch, by the Redis server's clock.
        max_attempts: how many crashes and unknown errors make a dead letter.
        retry_for: seconds for which passing errors are retried.
    """
    detail = type(error).__name__
    if isinstance(error, HOPELESS):
        return Decision(dead=True)
    if isinstance(error, MISCONFIGURED):
        return Decision(reason="pause", seconds=PROBE_EVERY, detail=detail, pause=True)
    if wait := _wait_of(error, now):
        return wait
    if isinstance(error, PASSING):
        expired = claim.failing_since is not None and now - claim.failing_since > retry_for
        longest = error.longest_wait if isinstance(error, Transient) else Transient.longest_wait
        return Decision(dead=True) if expired else retry_later(claim, detail, longest=longest)
    if claim.errors + claim.crashes + 1 >= max_attempts:
        return Decision(dead=True)
    return retry_later(claim, detail, error=True)


def _wait_of(error: BaseException, now: float) -> Decision | None:
    """The decision to wait without a failure, if ``error`` asks for it."""
    if isinstance(error, Wait):
        return Decision(reason=error.reason, seconds=error.seconds, detail=error.detail)
    if isinstance(error, JobError) and error.wait_reason:
        return Decision(reason=error.wait_reason, seconds=error.wait_seconds(now), detail=error.wait_detail)
    return None


def usable(error: BaseException, *, now: float) -> BaseException:
    """``error``, or a :class:`JobError` in its place when the text or the wait of ``error`` cannot be recorded.

    Such an error is a bug of the handler. It is the cause of the :class:`JobError`, so that its traceback is kept.
    """
    try:
        str(error)
        wait = _wait_of(error, now)
        fault = _fault_of(wait) if wait else ""
    except Exception as unreadable:  # the methods of an application's error may raise any exception
        fault = f"its text or its wait cannot be read ({type(unreadable).__name__})"
    if not fault:
        return error
    bug = JobError(
        f"The job raised {type(error).__name__}, and {fault}.", remedy="Correct the handler that raises this error."
    )
    bug.__cause__ = error
    return bug


def _fault_of(wait: Decision) -> str:
    if not isinstance(wait.reason, str) or not wait.reason or not wait.reason.isprintable():
        return f"its reason is not a line of text: {wait.reason!r}"
    if not isinstance(wait.seconds, int | float) or not -LONGEST_WAIT <= wait.seconds <= LONGEST_WAIT:
        return f"its seconds are not a number of at most {LONGEST_WAIT:.0f}: {wait.seconds!r}"
    if not isinstance(wait.detail, str) or clean_text(wait.detail) != wait.detail:
        return f"its detail has characters that are no text: {wait.detail!r}"
    return ""


def retry_later(claim: Claim, detail: str, *, error: bool = False, longest: float = Transient.longest_wait) -> Decision:
    """The decision to back off after a failed attempt. With ``error`` the attempt counts against ``max_attempts``."""
    return Decision(reason="retry", seconds=backoff(claim.retries, longest), detail=detail, retry=True, error=error)


def backoff(retries: int, longest: float = Transient.longest_wait) -> float:
    """Seconds before the next try: a random number between 0 and 2 s · 2^``retries``, at most ``longest``.

    Celery's ``get_exponential_backoff_interval`` is not used, because it returns whole seconds. Jobs that fail together
    would then often retry together.
    """
    return random.uniform(0, min(BACKOFF_FIRST * 2.0 ** min(retries, 16), longest))
