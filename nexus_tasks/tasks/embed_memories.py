"""embed_memories: vectors for the memories of a namespace that lack them."""

from __future__ import annotations

from typing import ClassVar

from nexus_tasks.cognition import embed
from nexus_tasks.idempotency.request import Request
from nexus_tasks.idempotency.task import Arguments, job
from nexus_tasks.idempotency.worker.run import Run
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.job_context import job_context
from nexus_tasks.tasks.runtime import runtime
from nexus_tasks.types import JobOutcome


class EmbedMemories(Arguments):
    """The whole namespace."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


@job(arguments=EmbedMemories, queue="maintenance")
def embed_memories(run: Run, arguments: EmbedMemories) -> JobOutcome:
    """Fill in a namespace's missing vectors."""
    here = runtime()
    namespace = here.namespace(arguments.namespace)
    if namespace is None:
        return JobOutcome(status="gone")
    return embed.embed_memories(here.resources, job_context(run, namespace))


def request(namespace: str) -> Request:
    """The request for a namespace's missing vectors."""
    return embed_memories.request_for(EmbedMemories(namespace=namespace))
