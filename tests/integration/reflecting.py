"""What tests of reflections say, know and script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from nexus_tasks import reflect_perspective
from tests.integration.inline import NAMESPACE, facts, say, work
from tests.sandbox import Sandbox
from tests.standin import StandIn

START = datetime(2026, 1, 1, tzinfo=UTC)


def know(*said: str, first_day: int = 0) -> list[int]:
    """Facts, said on one day after the other; returns the ids of all facts of ann."""
    days = range(first_day, first_day + len(said))
    say(*({"content": text, "author": "ann", "occurred_at": day(n)} for n, text in zip(days, said, strict=True)))
    work("derive_memory")
    return [fact.id for fact in facts(subject="ann")]


def day(number: int) -> datetime:
    """Midnight of a day of 2026."""
    return START + timedelta(days=number)


def relation(kind: str, new: int, old: int, holds: str = "both") -> dict[str, Any]:
    """One relation of an answer."""
    return {"kind": kind, "new_id": new, "old_id": old, "holds": holds, "rationale": "because"}


def insight(support: Sequence[int], content: str = "Ann is like that.") -> dict[str, Any]:
    """One insight of an answer."""
    return {"content": content, "support": list(support), "rationale": "because"}


def judge(standin: StandIn, *relations: dict[str, Any], insights: Sequence[dict[str, Any]] = ()) -> None:
    """Script the answer to every reflection from now on."""
    standin.answer("reflect", lambda _: {"relations": list(relations), "insights": list(insights)})


def run(status: str = "completed") -> dict[str, Any]:
    """Reflect on ann once; returns what the run row says."""
    job = reflect_perspective.delay(namespace=NAMESPACE, observer="assistant", subject="ann")
    work("reflect_perspective")
    outcome = job.wait(60)
    assert outcome.status == status
    return {name: value for name, value in outcome.details.items() if name != "reflection"}


def read(here: Sandbox, memory_id: int) -> dict[str, Any]:
    """One memory as it is now."""
    [row] = here.sql("SELECT to_jsonb(m) - 'tsv' FROM memories m WHERE id = :i", i=memory_id)
    return dict(row[0])


def made(here: Sandbox, level: str) -> list[tuple[Any, ...]]:
    """What reflections have concluded: content, confidence, sorted sources."""
    return here.sql(
        "SELECT m.content, m.confidence, array_agg(e.source_id ORDER BY e.source_id) FROM memories m"
        " JOIN evidence e ON e.memory_id = m.id WHERE m.level = :level GROUP BY m.id ORDER BY m.id",
        level=level,
    )


def again(here: Sandbox) -> None:
    """Let everything be reflected on once more."""
    here.sql("UPDATE perspectives SET reflected_through = 0")


def too_much(here: Sandbox, ids: Sequence[int], count: int = 6) -> list[dict[str, Any]]:
    """Relations that supersede ``count`` facts, each with a fact it is shown beside."""
    pairs = []
    for i in ids[:count]:
        [(near,)] = here.sql(
            "SELECT b.memory_id FROM embeddings a, embeddings b JOIN memories m ON m.id = b.memory_id"
            " WHERE a.memory_id = :i AND m.level = 'explicit' AND b.memory_id <> :i"
            " ORDER BY a.vector <=> b.vector, b.memory_id LIMIT 1",
            i=i,
        )
        pairs.append(relation("contradicts", i, near, "old"))
    return pairs
