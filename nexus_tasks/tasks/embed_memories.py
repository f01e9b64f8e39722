"""embed_memories: the job that makes the missing vectors of a namespace's memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nexus_tasks.cognition import embed
from nexus_tasks.deployment import Deployment
from nexus_tasks.idempotency.kind import Arguments, Outbox
from nexus_tasks.idempotency.request import Request
from nexus_tasks.storage import embeddings
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.tasks.arguments import NamespaceName
from nexus_tasks.tasks.handler import NamespaceRun, in_namespace
from nexus_tasks.tasks.registry import job
from nexus_tasks.types import JobOutcome


class EmbedMemories(Arguments):
    """The namespace whose memories get vectors."""

    scope: ClassVar = ("namespace",)
    namespace: NamespaceName


def _wanted(_deployment: Deployment, tx: Transaction, after: int, limit: int) -> Sequence[tuple[int, Request]]:
    return [(cursor, request(namespace)) for cursor, namespace in embeddings.wanted(tx, after, limit)]


def _mark(tx: Transaction, namespace_id: int, _args: Any, *, dead: bool) -> None:
    embeddings.mark(tx, namespace_id, dead=dead)


def _probe(deployment: Deployment) -> None:
    deployment.embedder.embed(["probe"])


@job(arguments=EmbedMemories, queue="maintenance", outbox=Outbox(page=_wanted, mark=_mark), probe=_probe)
@in_namespace
def embed_memories(work: NamespaceRun, _arguments: EmbedMemories) -> JobOutcome:
    """Fill in a namespace's missing vectors."""
    return embed.embed_memories(work.resources, work.context())


def request(namespace: str) -> Request:
    """The request for a namespace's missing vectors."""
    return embed_memories.request_for(EmbedMemories(namespace=namespace))
