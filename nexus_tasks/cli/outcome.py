"""What a command says about the job it asked for: that it waits, or how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nexus_tasks.cli import workers
from nexus_tasks.cli.output import emit, hint

if TYPE_CHECKING:
    from nexus_tasks.idempotency.producer.result import JobResult
    from nexus_tasks.types import JobOutcome


def tell(
    job: JobResult,
    reason: str,
    *,
    asked: str,
    ended: Callable[[JobOutcome], str],
    see: str,
    timeout: float | None,
    json: bool,
) -> None:
    """Print that ``job`` was asked for, or with a ``timeout`` (seconds) wait for it and print how it ended.

    Args:
        reason: what it was asked for by, for scripts.
        asked: the sentence for people while it waits.
        ended: their sentence about its outcome.
        see: where they read what came of it.

    Raises:
        JobFailed: it gave up.
        WaitTimeout: it has not ended by then.
        EmbeddedError: no worker runs, and one for the wait does not start.
    """
    if timeout is None:
        if json:
            emit({"job_id": job.id, "status": "pending", "reasons": [reason], "details": {}})
        else:
            print(asked)
        workers.say_when_there_is_none()
        return
    with workers.for_the_wait():
        outcome = job.wait(timeout=timeout)
    if json:
        emit(outcome)
    else:
        print(ended(outcome))
        hint(see)
