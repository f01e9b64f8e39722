"""What beat starts. Each run is idempotent: two beats, or a beat that catches up, do no harm."""

from __future__ import annotations

from nexus_tasks.celery import app
from nexus_tasks.storage import runs
from nexus_tasks.tasks.runtime import runtime


@app.task(name="nexus_tasks.prune")  # type: ignore[untyped-decorator]
def prune() -> dict[str, int]:
    """Delete job runs, and dead letters that were dealt with, after 30 days. Open dead letters stay."""
    with runtime().database.transaction() as tx:
        return runs.prune(tx)
