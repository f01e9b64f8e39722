"""Discard what a run has kept of notes that an erasure has deleted since the run read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.errors import Erased, JobError
from nexus_tasks.storage import ledger, observations
from nexus_tasks.storage.models import ObservationLog


@contextmanager
def discarding_erased_notes(resources: Resources, job: JobContext, seen: ObservationLog) -> Iterator[None]:
    """Ask the model about notes inside this block.

    A note may have words of messages that it does not cite, so ``JobContext.rests_on`` does not name them. When a
    message of the session was erased after ``seen`` was read, and then a call fails, the error and the saved answers of
    earlier calls may quote that message. So the block deletes the saved answers and replaces the error. It also deletes
    them when the whole log was erased meanwhile.

    Args:
        seen: the session's observation log, as it was before the prompts were made.

    Raises:
        Erased: in place of a :class:`JobError`, when a message of the session was erased meanwhile.
    """
    try:
        yield
    except JobError:
        with resources.database.transaction() as tx:
            if observations.is_without_erasures_since(tx, seen):
                raise
            ledger.delete_answers(tx, job.namespace_id, job.asked)
        raise Erased from None
    with resources.database.transaction() as tx:
        # The log is gone, and so may be the run's claim, without which the run's commit deletes no answers.
        if observations.find_log(tx, seen.session_id) is None:
            ledger.delete_answers(tx, job.namespace_id, job.asked)
