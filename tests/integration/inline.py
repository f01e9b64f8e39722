"""A worker inside the test's own process: real claims, a real database and real HTTP, one job after the other.

Tests of what a job does, and of what becomes of it, need no second process; those of crashes do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from nexus_tasks import Nexus, config
from nexus_tasks.cognition.job_context import JobContext
from nexus_tasks.deployment import default_deployment
from nexus_tasks.idempotency.claim import Claim
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.idempotency.worker.executor import execute
from nexus_tasks.types import MemoryInfo
from tests.sandbox import Sandbox, engine
from tests.standin import Call

MOST_JOBS = 500
NAMESPACE = "acme"


def work(*kinds: str) -> list[dict[str, Any]]:
    """Run pending jobs, and those that they ask for, until none is left; with ``kinds`` only those. Their results.

    Started eagerly, so that nothing waits for company. What raises ends up waiting or dead, as in a worker.
    """
    results = []
    while claim := next((claim for claim in pending() if not kinds or claim.kind in kinds), None):
        assert len(results) < MOST_JOBS, f"no end: {claim}"
        results.append({"kind": claim.kind, **run_claim(claim)})
    return results


def run_claim(claim: Claim) -> dict[str, Any]:
    """Run a claim's job in this process, eagerly; its outcome, in one mapping with the details."""
    kind = engine.kind(claim.kind)
    request = kind.request_for(kind.load(claim.args), job_id=claim.job_id)
    outcome = execute(default_deployment().engine, kind, request, published_at="", eager=True).outcome
    known = {"status": outcome.status, "job_id": outcome.job_id, "reasons": list(outcome.reasons)}
    return known | dict(outcome.details)


def work_as_asked(*, without: Collection[str] = ()) -> None:
    """Run pending jobs until none is left, not eagerly: as live or as patient as they were asked for, and what wants
    company waits for it. Kinds in ``without`` are left alone.
    """
    while claims := [claim for claim in pending() if claim.kind not in without]:
        task = task_of(engine, claims[0].kind)
        request = task.kind.request_for(task.kind.load(claims[0].args), job_id=claims[0].job_id)
        execute(engine, task.kind, request, published_at="", eager=False)


def pending() -> list[Claim]:
    """Claims that a worker would begin now, oldest first."""
    claims = default_deployment().claims
    found = [claim for queue in config.QUEUES for claim in claims.pending(queue)]
    return sorted(found, key=lambda claim: claim.enqueued_at)


def wanted() -> set[str]:
    """The kinds of which Postgres wants a job now."""
    storage = engine.storage
    kinds = [kind for kind in engine.kinds().values() if kind.outbox]
    return {kind.name for kind in kinds if any(row is not None for _, row in storage.wanted(kind, 0, 500))}


def waiting() -> list[Claim]:
    """Claims that wait, soonest due first."""
    return default_deployment().claims.waiting()


def due_at_once(here: Sandbox) -> int:
    """Make everything that waits due, as if its time had come; returns how many claims that were.

    The time is written back in the index that the sweep reads (``due``), only for claims that are in it: a worker may
    be taking them out meanwhile.
    """
    index = f"{here.name}:due"
    waits = dict.fromkeys(here.redis().zrange(index, 0, -1), 0)
    if waits:
        here.redis().zadd(index, waits, xx=True)
    return len(waits)


def time_passes(here: Sandbox, *, failing: float | None = None) -> int:
    """Let all waits end: :func:`due_at_once`, then what the sweep does. With ``failing``, the claims have been failing
    for so many seconds. For tests without a worker.
    """
    if failing is not None:
        seconds, _ = here.redis().time()
        for claim in waiting():
            here.redis().hset(claim.key, "failing_since", int((seconds - failing) * 1000))
    due = due_at_once(here)
    return default_deployment().claims.sweep_due(due)[0] if due else 0


def say(*said: str | Mapping[str, Any], session: str = "chat", namespace: str = NAMESPACE, **options: Any) -> list[int]:
    """Ingest messages of ``ann`` (or as given); returns the ids of all raw memories of the session, in order."""
    messages = [{"content": one, "author": "ann"} if isinstance(one, str) else one for one in said]
    Nexus().ingest(namespace, session, messages, **options)
    return [one.id for one in Nexus().session(namespace, session).said]


def facts(namespace: str = NAMESPACE, **wanted: Any) -> list[MemoryInfo]:
    """The active facts of a namespace, oldest first."""
    found = Nexus().memories(namespace, levels=["explicit"], limit=1_000, **wanted)
    return sorted(found, key=lambda fact: fact.id)


def observations(*made: Mapping[str, Any] | tuple[str, Sequence[int]]) -> dict[str, Any]:
    """A derivation's answer: of each observation (content, sources), or the fields that matter."""
    full = []
    for one in made:
        fields = dict(one) if isinstance(one, Mapping) else {"content": one[0], "sources": list(one[1])}
        full.append(
            {"subject": "ann", "category": "fact", "confidence": 0.9, "occurred_at": None, "labels": []} | fields
        )
    return {"observations": full}


def answers(*made: Mapping[str, Any] | tuple[str, Sequence[int]]) -> Callable[[Call], Any]:
    """A stand-in's answer to every derivation: see :func:`observations`."""
    return lambda _call: observations(*made)


def dump(here: Sandbox, *without: str) -> dict[str, list[str]]:
    """Every row of every table as text, to compare; tables named in ``without`` are left out.

    Of what writers only append to, and upkeep sums up, the sums.
    """
    tables = here.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    rows = {name: f'SELECT t::text FROM "{name}" AS t' for (name,) in tables} | {"search_totals": _TOTALS}
    return {
        name: sorted(str(row) for (row,) in here.sql(query))
        for name, query in rows.items()
        if name not in (*without, "alembic_version")
    }


_TOTALS = (
    "SELECT ROW(namespace_id, model, sum(count), sum(length))::text FROM search_totals GROUP BY namespace_id, model"
    " HAVING sum(count) <> 0 OR sum(length) <> 0"
)


def job_context(namespace: str = NAMESPACE) -> JobContext:
    """A job context without a claim: for runs that overlap, which claims prevent."""
    known = default_deployment().namespace(namespace)
    assert known is not None
    return JobContext(
        namespace_id=known.id,
        namespace=known.name,
        job_id=str(uuid.uuid4()),
        budget=lambda: None,
        still_mine=lambda: None,
        record=lambda _tx, _outcome: None,
    )


@contextmanager
def statements(here: Sandbox) -> Iterator[list[str]]:
    """The statements inside the block, without BEGIN and COMMIT."""
    found, database = list[str](), here.deployment.database.engine

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    event.listen(database, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(database, "before_cursor_execute", note)
