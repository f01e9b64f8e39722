"""embed_memories: the job that makes the missing vectors of a namespace's memories."""

from __future__ import annotations

from typing import ClassVar

from nexus_tasks.cognition import embed
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import embeddings
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.tasks.outboxes import of_rows
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class EmbedMemories(Arguments):
    """The namespace whose memories get vectors."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


def _probe(deployment: Deployment) -> None:
    deployment.embedder.embed(["probe"])


@job(
    arguments=EmbedMemories,
    queue="maintenance",
    outbox=of_rows(EmbedMemories, embeddings.wanted, mark=embeddings.mark),
    probe=_probe,
)
@in_namespace
def embed_memories(work: NamespaceRun, _arguments: EmbedMemories) -> JobOutcome:
    """Fill in a namespace's missing vectors."""
    return embed.embed_memories(work.resources, work.context())


def request(namespace: str) -> Request:
    """The request to make a namespace's missing vectors."""
    return embed_memories.request_for(EmbedMemories(namespace=namespace))
