"""What an error means for the job that raised it. The type decides; see the table in ``docs/jobs.md``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nexus_tasks.errors import (
    AwaitsBatch,
    ConfigurationError,
    Misconfigured,
    OverBudget,
    Permanent,
    QueueUnavailable,
    SchemaOutdated,
    StorageUnavailable,
    Throttled,
    Transient,
)
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.worker.run import Wait

BACKOFF_FIRST = 2.0
BACKOFF_LONGEST = 300.0
PROBE_EVERY = 60.0
BATCH_LOOK_AGAIN = 600.0  # in case the hurry that follows an answer is lost

# What no job is to blame for: the deployment's settings, and servers that are away.
MISCONFIGURED = (Misconfigured, ConfigurationError, SchemaOutdated)
PASSING = (Transient, QueueUnavailable, StorageUnavailable)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Let the claim wait (``seconds`` for ``reason``), or make it a dead letter (``dead``)."""

    reason: str = ""
    seconds: float = 0.0
    detail: str = ""
    retry: bool = False
    error: bool = False
    pause: bool = False
    dead: bool = False


def decide(error: BaseException, claim: Claim, *, now: float, max_attempts: int, retry_for: float) -> Decision:
    """What happens to a claim whose run raised ``error``; ``now`` is seconds since the epoch."""
    if isinstance(error, Wait):
        return Decision(reason=error.reason, seconds=error.seconds, detail=error.detail)
    detail = type(error).__name__
    if isinstance(error, Permanent):
        return Decision(dead=True)
    if isinstance(error, MISCONFIGURED):
        return Decision(reason="pause", seconds=PROBE_EVERY, detail=detail, pause=True)
    if isinstance(error, OverBudget):
        return Decision(reason="budget", seconds=until_tomorrow(now), detail=error.detail or detail)
    if isinstance(error, AwaitsBatch):
        return Decision(reason="batch", seconds=BATCH_LOOK_AGAIN)
    if isinstance(error, Throttled):
        return Decision(reason="throttle", seconds=error.retry_after, detail=detail)
    if isinstance(error, PASSING):
        expired = claim.failing_since is not None and now - claim.failing_since > retry_for
        return Decision(dead=True) if expired else retry_later(claim, detail)
    if claim.errors + claim.crashes + 1 >= max_attempts:
        return Decision(dead=True)
    return retry_later(claim, detail, error=True)


def retry_later(claim: Claim, detail: str, *, error: bool = False) -> Decision:
    """A failed attempt that backs off; ``error`` when it counts against ``max_attempts``."""
    return Decision(reason="retry", seconds=backoff(claim.retries), detail=detail, retry=True, error=error)


def backoff(retries: int) -> float:
    """Seconds before the next try: 2 s · 2^n with full jitter, at most 5 minutes."""
    return random.uniform(0, min(BACKOFF_FIRST * 2.0 ** min(retries, 16), BACKOFF_LONGEST))


def until_tomorrow(now: float) -> float:
    """Seconds until the UTC day turns, and a little for clocks that disagree."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (today + timedelta(days=1)).timestamp() - now + 2
