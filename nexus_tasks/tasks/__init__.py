"""The jobs: one module per kind, thin. Importing this package declares them and binds claims to storage."""

from __future__ import annotations

from nexus_tasks.idempotency.binding import Binding, bind
from nexus_tasks.idempotency.claims import Claims
from nexus_tasks.tasks import (
    derive_memory,
    digest_session,
    embed_memories,
    extract_session,
    finish_dream,
    observe_session,
    reflect_namespace,
    reflect_observations,
    reflect_perspective,
    runtime,
    submit_batch,
    ticks,
    warm,
)
from nexus_tasks.tasks.outbox import JobStorage


def _binding() -> Binding:
    here = runtime.runtime()
    lease = here.settings.lease_seconds
    return Binding(
        claims=here.claims,
        heartbeat_claims=Claims(here.claims.url, here.claims.prefix, timeout=lease / 4),
        storage=JobStorage(here),
        lease=lease,
        max_attempts=here.settings.max_attempts,
        retry_for=here.settings.retry_for,
    )


bind(_binding, load=warm.load)

__all__ = [
    "derive_memory",
    "digest_session",
    "embed_memories",
    "extract_session",
    "finish_dream",
    "observe_session",
    "reflect_namespace",
    "reflect_observations",
    "reflect_perspective",
    "submit_batch",
    "ticks",
    "warm",
]
