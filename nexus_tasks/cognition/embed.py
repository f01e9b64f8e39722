"""Filling in vectors that are missing: the embedder was away, nobody derives the message, or the model is a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from nexus_tasks.cognition.resources import JobContext, Resources
from nexus_tasks.embeddings.base import Embedder, Vectors
from nexus_tasks.errors import ConfigurationError, JobError, Permanent
from nexus_tasks.storage import embeddings
from nexus_tasks.storage.engine import Database
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

AT_ONCE = 256  # memories of one transaction


def vectors_of(embedder: Embedder, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors by text; none of them while the embedder is away: a job fills them in later."""
    once = list(dict.fromkeys(texts))
    if not once:
        return {}
    try:
        return dict(zip(once, embedder.embed(once), strict=True))
    except (JobError, ConfigurationError) as error:
        log.warning("%d texts are stored without vectors for now: %s", len(once), error)
        return {}


def embed_memories(resources: Resources, job: JobContext) -> JobOutcome:
    """Give every memory of a namespace its vector, page by page, the newest first.

    Raises:
        JobError: the embedder is away or refuses its key; what is stored by then stays.
    """
    with resources.database.transaction() as tx:
        since = embeddings.gap_since(tx, job.namespace_id)

    def still_mine(_done: int) -> None:
        job.still_mine()

    filled, refused = fill(resources.database, resources.embedder, job.namespace_id, still_mine)
    with resources.database.transaction() as tx:
        if since is not None:
            embeddings.close_gap(tx, job.namespace_id, since)
        details = {"embedded": filled, "refused": refused, "model": resources.embedder.name}
        outcome = JobOutcome(status="completed" if filled or refused else "unchanged", details=details)
        return job.commit(tx, outcome)


def fill(database: Database, embedder: Embedder, namespace_id: int, note: Callable[[int], None]) -> tuple[int, int]:
    """Embed and store what a namespace lacks; returns how many vectors were stored, and how many texts were refused.

    ``note`` hears before each page is stored how many are; what it raises ends the work.
    """
    filled, refused, before = 0, 0, None
    while True:
        with database.transaction() as tx:
            page = embeddings.to_embed(tx, namespace_id, embedder.name, before=before, limit=AT_ONCE)
        if not page:
            return filled, refused
        vectors = _accepted(embedder, list(dict.fromkeys(page.values())))
        refused += sum(text not in vectors for text in page.values())
        note(filled)
        with database.transaction() as tx:
            still = embeddings.lock_unchanged(tx, {i: text for i, text in page.items() if text in vectors})
            embeddings.store(tx, namespace_id, embedder.name, still, vectors)
        filled += len(still)
        before = min(page)


def _accepted(embedder: Embedder, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors of those texts that the embedder takes: one that it refuses must not keep the others from theirs."""
    try:
        return dict(zip(texts, embedder.embed(texts), strict=True))
    except Permanent:
        if len(texts) == 1:
            return {}
        middle = len(texts) // 2
        return _accepted(embedder, texts[:middle]) | _accepted(embedder, texts[middle:])
