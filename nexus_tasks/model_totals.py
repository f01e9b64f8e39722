"""Counting model calls in Redis, for metrics. The ledger in Postgres is what budgets and bills rest on."""

from __future__ import annotations

import logging

from nexus_tasks.errors import QueueUnavailable
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.storage.ledger import PaidCall

log = logging.getLogger(__name__)


def count_call(claims: Claims, call: PaidCall) -> None:
    """Count a call that is in the ledger. While Redis is away the call is not counted.

    The names of the counters are a figure, the purpose, the model and a detail, such as
    ``tokens|derive|claude-haiku-4-5|input``.
    """
    of = f"{call.purpose}|{call.model.replace('|', '_')}"
    row = call.row(0)
    mode = "batch" if call.batched else "live"
    by = {
        f"calls|{of}|{mode}": 1,
        f"cost_nano_usd|{of}|{mode}": round(row["cost_usd"] * 1_000_000_000),
        f"tokens|{of}|input": call.usage.input_tokens,
        f"tokens|{of}|output": call.usage.output_tokens,
        f"tokens|{of}|cache_write": call.usage.cache_write_tokens,
        f"tokens|{of}|cache_read": call.usage.cache_read_tokens,
    }
    if not call.batched:  # a batch's answer takes hours, and says nothing of the model's speed
        by[f"call_ms|{of}"] = round(call.seconds * 1000)
    try:
        claims.count({name: number for name, number in by.items() if number})
    except QueueUnavailable as error:
        log.debug("A model call is missing from the metrics: %s", error)
