"""submit_batch: a namespace's requests of urgency ``dream`` through the Message Batches API, and their answers back."""

from __future__ import annotations

from typing import ClassVar

from nexus_tasks.cognition import message_batches
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.tasks import follow_ups
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class SubmitBatch(Arguments):
    """One namespace's requests."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


@job(arguments=SubmitBatch, queue="maintenance")
def submit_batch(run: Run, arguments: SubmitBatch) -> JobOutcome:
    """Collect what has come back, submit what is due, and look again later while anything is under way."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    standing = message_batches.advance(here.resources, namespace.id, run.check)
    if standing.back:
        follow_ups.hurry_all("batch", namespace.name)
    if standing.seconds is not None:
        raise Wait("batch", standing.seconds, standing.detail)
    with here.database.transaction() as tx:
        return job_context(run, namespace).commit(tx, JobOutcome(status="completed"))


def request(namespace: str) -> Request:
    """The request to look after a namespace's batches."""
    return submit_batch.request_for(SubmitBatch(namespace=namespace))
