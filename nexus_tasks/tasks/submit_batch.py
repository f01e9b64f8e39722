"""submit_batch: sends a namespace's model requests of urgency ``dream`` as message batches, and collects the answers.

A message batch is a set of model requests that is sent together at half the price.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from nexus_tasks.cognition import message_batches
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.worker.run import Wait
from nexus_tasks.storage import batches
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace, probe_model
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome

BATCH = "batch"  # the reason for which jobs wait for a message batch, and for which this job waits until its next poll


class SubmitBatch(Arguments):
    """The namespace whose model requests are sent."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


@job(
    arguments=SubmitBatch,
    queue="maintenance",
    outbox=of_rows(SubmitBatch, partial(batches.wanted, job="submit_batch")),
    probe=probe_model("digest", "reflect"),
    live_ends_wait=BATCH,
)
@in_namespace
def submit_batch(work: NamespaceRun, _arguments: SubmitBatch) -> JobOutcome:
    """Collect the answers that have come, submit the requests that are due, and wait while any request is open."""
    namespace = work.namespace
    progress = message_batches.advance(work.resources, namespace.id, work.run.check)
    # An earlier run may have died after it had stored answers and before it woke their jobs.
    if progress.back or work.run.primary.crashes:
        follow_ups.hurry_all(work.deployment, BATCH, namespace.name)
        follow_ups.wake_held(work.deployment, namespace.name, reserved=True)
    if progress.seconds is not None:
        raise Wait(BATCH, progress.seconds, progress.detail)
    with work.database.transaction() as tx:
        return work.commit(tx, JobOutcome(status="completed"))


def request(namespace: str) -> Request:
    """The request to submit and collect a namespace's batches."""
    return submit_batch.request_for(SubmitBatch(namespace=namespace))
