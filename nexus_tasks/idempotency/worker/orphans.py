"""Orphans: the claims (records in Redis) of running jobs whose process has ended.

The jobs are queued again, or become dead letters. The sweep (the loop in ``sweeper.py``) calls these functions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from nexus_tasks.errors import NexusError, StorageUnavailable
from nexus_tasks.idempotency.claim import Claim, log_fields
from nexus_tasks.idempotency.engine import JobEngine
from nexus_tasks.idempotency.worker import run_span
from nexus_tasks.idempotency.worker.run import new_token

log = logging.getLogger(__name__)

AT_ONCE = 500  # claims per script; Redis serves no other client while a script runs


def give_back(engine: JobEngine, held_by: str) -> None:
    """Queue again the jobs of a process that has ended, and publish them at once. Each job counts a crash.

    Args:
        held_by: the id of the process, or the whole token of one run.
    """
    if return_orphans(engine, held_by=held_by) and engine.breaker.closed():
        publish_due(engine)


def return_orphans(engine: JobEngine, *, held_by: str = "", due_in: float = 0.0, seconds: float = float("inf")) -> int:
    """Take claims from dead processes, and let them wait for the reason ``crash``.

    Claims without attempts left become dead letters.

    Args:
        held_by: the id of a process, or the whole token of one run. If empty, every claim whose lease has ended is
            taken.
        due_in: seconds until a returned claim is due.
        seconds: after how many seconds the rest is left to the next call.

    Returns:
        How many claims wait again.
    """
    enough, total, taken = time.monotonic() + seconds, 0, 0
    while True:
        returned, dead, wakeups = engine.claims.sweep_leases(
            AT_ONCE,
            held_by=held_by,
            attempts=engine.limits.max_attempts,
            token=new_token(engine.holder.id),
            lease=engine.limits.lease,
            due_in=due_in,
        )
        engine.publisher.publish(wakeups)
        bury(engine, dead)
        total, taken = total + returned, taken + returned + len(dead)
        if returned + len(dead) < AT_ONCE or time.monotonic() > enough:
            break
    if taken:
        release_ended_runs(engine)
    if total:
        log.warning("%d jobs lost their worker and return to the queue.", total)
    return total


def release_ended_runs(engine: JobEngine) -> None:
    """Give back what runs that have ended still hold in storage, and publish the jobs that wait for it.

    When storage is away, reconcile does this later.
    """
    if not engine.breaker.closed():
        return
    try:
        for wakeups in engine.storage.release_ended_runs():
            engine.publisher.publish(wakeups)
    except NexusError as error:
        log.warning("What dead runs hold was not given back; reconcile tries again: %s", error)


def publish_due(engine: JobEngine, *, seconds: float = 2.0) -> None:
    """Publish the waiting claims that are due, for about ``seconds`` at most, or until the broker fails."""
    enough = time.monotonic() + seconds
    while True:
        due, wakeups = engine.claims.sweep_due(AT_ONCE)
        sent = engine.publisher.publish(wakeups)
        if due < AT_ONCE or sent < len(wakeups) or time.monotonic() > enough:
            break


def bury(engine: JobEngine, dead: Sequence[Claim]) -> None:
    """Commit the dead letters of claims that the sweep has taken over, then end the claims."""
    refused = set[str]()  # namespaces that take no letter now
    for claim in dead:
        if claim.namespace in refused:
            continue
        try:
            engine.storage.dead_letter(claim, None)
        except StorageUnavailable as error:
            # Postgres is away, so the other letters cannot be written either. The leases of their claims end, and a
            # later sweep writes the letters.
            log.warning("%d dead letters could not be written: %s", len(dead), error)
            return
        except NexusError as error:  # for example, the namespace moves to another cell
            log.warning("The dead letters of %s could not be written: %s", claim.namespace, error)
            refused.add(claim.namespace)
            continue
        except Exception:  # one letter that cannot be written must not stop the other letters
            log.exception("The dead letter of job %s (%s) could not be written.", claim.job_id, claim.kind)
            continue
        message = "Job %s (%s) is a dead letter: its worker died every time."
        log.error(message, claim.job_id, claim.kind, extra=log_fields(claim))
        run_span.bury(claim)
        engine.publisher.publish(engine.claims.finish([claim], ["dead"]))
