"""What beat starts. Each tick is done once per slot of its schedule: two beats running at once do no harm."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nexus_tasks.celery import app
from nexus_tasks.idempotency.claims import answering
from nexus_tasks.storage import dreams, embeddings, pruning
from nexus_tasks.storage.searching import upkeep
from nexus_tasks.tasks import finish_dream, worker_buffer
from nexus_tasks.tasks.runtime import runtime


@app.task(name="nexus_tasks.dream_due")  # type: ignore[untyped-decorator]
def dream_due() -> list[str]:
    """Start the dreams that are due; returns their namespaces."""
    if not _first_in_slot("dream_due"):
        return []
    with runtime().database.transaction() as tx:
        due = dreams.due_namespaces(tx)
    return [namespace for namespace in due if finish_dream.start(namespace).opened]


@app.task(name="nexus_tasks.prune")  # type: ignore[untyped-decorator]
def prune() -> dict[str, int]:
    """Delete job runs, and dead letters that were dealt with, after 30 days. Open dead letters stay."""
    if not _first_in_slot("prune"):
        return {}
    with runtime().database.transaction() as tx:
        return pruning.prune(tx)


@app.task(name="nexus_tasks.recover_buffers")  # type: ignore[untyped-decorator]
def recover_buffers() -> dict[str, int]:
    """Store what lies in the session buffer of the machine that this worker runs on.

    Not once per slot: every machine has a folder of its own, and storing one twice stores it once.
    """
    return worker_buffer.store()


@app.task(name="nexus_tasks.find_embedding_gaps")  # type: ignore[untyped-decorator]
def find_embedding_gaps() -> list[str]:
    """Find memories without a vector of the present model, as after a change of it; reconcile has them filled in."""
    if not _first_in_slot("find_embedding_gaps"):
        return []
    here = runtime()
    with here.database.transaction() as tx:
        return list(embeddings.record_all_gaps(tx, here.embedder.name))


@app.task(name="nexus_tasks.keep_search_fast")  # type: ignore[untyped-decorator]
def keep_search_fast() -> dict[str, Any]:
    """Fold search's totals, count common words, index the vectors of large namespaces; what it did."""
    return asdict(upkeep.run(runtime().database)) if _first_in_slot("keep_search_fast") else {}


def _first_in_slot(schedule: str) -> bool:
    """Whether nobody has done this schedule's tick for the present slot."""
    seconds = app.conf.beat_schedule[schedule]["schedule"]
    claims = runtime().claims
    with answering():
        slot = int(claims.now() // seconds)
        key = f"{claims.prefix}:tick:{schedule}:{slot}"
        return bool(claims.redis.set(key, "1", nx=True, ex=int(2 * seconds)))
