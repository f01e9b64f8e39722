"""The span of the commit of a run's effects, from the first of its last statements to Postgres' answer."""

from __future__ import annotations

from sqlalchemy import event

from nexus_tasks import tracing
from nexus_tasks.storage.engine import Transaction


def open_until_end(tx: Transaction) -> None:
    """Open a span that ends with the transaction, and says whether the transaction was rolled back."""
    span = tracing.span("commit")
    if not span.recording:
        return

    def committed(_session: Transaction) -> None:
        span.end()

    def rolled_back(_session: Transaction) -> None:
        span.set("nexus.rolled_back", True)
        span.end()

    event.listen(tx, "after_commit", committed, once=True)
    event.listen(tx, "after_rollback", rolled_back, once=True)
