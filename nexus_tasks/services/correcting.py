"""Correct memories: replace a fact, and pin or unpin a memory.

A correction is a message of the person who corrects, and a fact that rests on it. It is recorded like a reflection of
its own, so that ``undo`` reverses it. Erasure, export and row-level security treat it like any other memory.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from nexus_tasks.cognition import correction
from nexus_tasks.cognition.embed import vectors_of
from nexus_tasks.deployment import Deployment
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services.ingestion import SessionWriter, scrubbed
from nexus_tasks.services.memories import show_memory
from nexus_tasks.storage import audit, embeddings, namespaces
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.types import MemoryDetails, Message, check_namespace

SESSION = "corrections"
LONGEST_FACT = 500  # characters


def revise(
    deployment: Deployment,
    namespace: str,
    memory_id: int,
    content: str,
    *,
    author: str,
    expires_at: datetime | None,
    erase_expired: bool,
) -> MemoryDetails:
    """See :meth:`nexus_tasks.client.Nexus.revise`."""
    line = " ".join(content.split())
    if len(line) > LONGEST_FACT:
        raise InvalidInput(f"content has {len(line):,} characters; a fact has at most {LONGEST_FACT}.")
    with deployment.database.reading() as tx:
        known = namespaces.get(tx, check_namespace(namespace))
    if known.scrub:  # before the lines are joined: behind a space, the rest of a secret looks like a word
        line = " ".join(scrub(content).split())
    message = Message(
        content=line,
        author=author,
        occurred_at=datetime.now(UTC),
        id=f"correction:{uuid.uuid4()}",
        expires_at=expires_at,
        erase_expired=erase_expired,
    )
    if known.scrub:
        message = scrubbed(message)
    vectors = vectors_of(deployment.embedder, [message.content])

    def committed(tx: Transaction) -> tuple[int, int | None]:
        namespaces.get(tx, known.name)  # it may be moving to another cell since, and take no writes
        old = correction.lock(tx, known.id, memory_id)
        if (heir := correction.existing_heir(tx, old, message.content)) is None:
            if old.memory.valid_to is not None:
                raise correction.superseded(old.memory)
            writer = SessionWriter(deployment, tx, known, SESSION)
            source = None
            if (same := correction.same_fact(tx, old, message)) is None:
                [source] = writer.store([message], observers=[]).memory_ids
            heir = correction.revise(tx, old, message, source, same)
            embeddings.store(tx, known.id, deployment.embedder.name, {heir: message.content}, vectors)
            audit.record(tx, "correct.revise", namespace, {"memories": 1})
        return heir, correction.number_of(tx, old.memory.id, heir)

    heir, number = deployment.database.commit(committed)
    found = show_memory(deployment, namespace, heir)
    # A fact that says the same already was made by something else, and `undo` is to reverse this correction.
    return found if number is None else replace(found, reflection=number)


def pin(deployment: Deployment, namespace: str, memory_id: int, *, pinned: bool) -> MemoryDetails:
    """See :meth:`nexus_tasks.client.Nexus.pin` and :meth:`nexus_tasks.client.Nexus.unpin`."""

    def committed(tx: Transaction) -> None:
        known = namespaces.get(tx, check_namespace(namespace))
        if correction.pin(tx, correction.lock(tx, known.id, memory_id), pinned=pinned):
            audit.record(tx, "correct.pin" if pinned else "correct.unpin", namespace, {"memories": 1})

    deployment.database.commit(committed)
    return show_memory(deployment, namespace, memory_id)
