"""Turn texts into vectors, and run the job embed_memories, which stores the missing vectors of memories.

A memory has no vector in three cases: the embedder did not answer, the memory is a message that no observer derives, or
the embedding model has changed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.embeddings.base import Embedder, Vectors
from nexus_tasks.errors import ConfigurationError, JobError, Permanent
from nexus_tasks.storage import embeddings
from nexus_tasks.storage.engine import Database
from nexus_tasks.types import JobOutcome

log = logging.getLogger(__name__)

AT_ONCE = 256  # memories per transaction (chosen by hand, not measured)
# After this many seconds a run of embed_memories begins no further page, and the next run goes on. The vectors of a
# large import take longer than the 600 s that a run may last.
RUN_SECONDS = 120.0


def vectors_of(embedder: Embedder, texts: Sequence[str]) -> dict[str, Vectors]:
    """Map each text to its vector.

    When the embedder fails, the result is empty. The job embed_memories then makes the vectors later.
    """
    once = list(dict.fromkeys(texts))
    if not once:
        return {}
    try:
        return dict(zip(once, embedder.embed(once), strict=True))
    except (JobError, ConfigurationError) as error:
        log.warning("%d texts are stored without vectors for now: %s", len(once), error)
        return {}


def embed_memories(resources: Resources, job: JobContext) -> JobOutcome:
    """Store the missing vectors of a namespace's memories, at most 256 memories at a time, the newest first.

    After two minutes the run ends and keeps the gap, so that reconcile asks for another run.

    Raises:
        JobError: the embedder does not answer, or refuses the configured API key. Vectors that were stored before the
            error stay.
    """
    with resources.database.transaction() as tx:
        since = embeddings.gap_since(tx, job.namespace_id)

    def still_mine(_done: int) -> None:
        job.still_mine()

    until = time.monotonic() + RUN_SECONDS
    filled, refused = fill_missing_vectors(
        resources.database, resources.embedder, job.namespace_id, still_mine, until=until
    )
    with resources.database.transaction() as tx:
        if filled and time.monotonic() >= until:
            embeddings.record_gap(tx, job.namespace_id)
        elif since is not None:
            embeddings.close_gap(tx, job.namespace_id, since)
        details = {"embedded": filled, "refused": refused, "model": resources.embedder.name}
        outcome = JobOutcome(status="completed" if filled or refused else "unchanged", details=details)
        return job.commit(tx, outcome)


def fill_missing_vectors(
    database: Database,
    embedder: Embedder,
    namespace_id: int,
    note: Callable[[int], None],
    *,
    until: float = math.inf,
) -> tuple[int, int]:
    """Embed the memories of a namespace that have no vector.

    Args:
        note: a function that is called before each page of memories is stored. Its argument is the number of
            vectors stored so far. An error that ``note`` raises ends the work.
        until: from this time of ``time.monotonic`` on no page is begun, once a vector has been stored.

    Returns:
        The number of stored vectors, and the number of texts that the embedder refused.
    """
    filled, refused, before = 0, 0, None
    while not filled or time.monotonic() < until:
        with database.transaction() as tx:
            page = embeddings.to_embed(tx, namespace_id, embedder.name, before=before, limit=AT_ONCE)
        if not page:
            return filled, refused
        vectors = _vectors_of_accepted(embedder, list(dict.fromkeys(page.values())))
        refused += sum(text not in vectors for text in page.values())
        note(filled)
        with database.transaction() as tx:
            still = embeddings.lock_unchanged(tx, {i: text for i, text in page.items() if text in vectors})
            embeddings.store(tx, namespace_id, embedder.name, still, vectors)
        filled += len(still)
        before = min(page)
    return filled, refused


def _vectors_of_accepted(embedder: Embedder, texts: Sequence[str]) -> dict[str, Vectors]:
    """Map each text that the embedder accepts to its vector. Halving the list finds the refused texts."""
    try:
        return dict(zip(texts, embedder.embed(texts), strict=True))
    except Permanent:
        if len(texts) == 1:
            return {}
        middle = len(texts) // 2
        return _vectors_of_accepted(embedder, texts[:middle]) | _vectors_of_accepted(embedder, texts[middle:])
