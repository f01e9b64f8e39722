"""Report what model calls have cost, from the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nexus_tasks.deployment import Deployment
from nexus_tasks.storage import ledger, namespaces
from nexus_tasks.types import SpendReport, check_namespace, to_utc

PERIOD = timedelta(days=30)


def spend(deployment: Deployment, namespace: str | None, since: datetime | None, until: datetime | None) -> SpendReport:
    """See :meth:`nexus_tasks.client.Nexus.spend`."""
    last = to_utc(until) if until else datetime.now(UTC)
    first = to_utc(since) if since else max(last, datetime.min.replace(tzinfo=UTC) + PERIOD) - PERIOD
    with deployment.database.transaction() as tx:
        known = None if namespace is None else namespaces.get(tx, check_namespace(namespace)).id
        entries = tuple(ledger.spent_by_day(tx, known, first, last))
    total = sum(one.cost_usd for one in entries)
    return SpendReport(namespace=namespace, since=first, until=last, entries=entries, cost_usd=total)
