"""Choose the memories of a namespace that the demo's report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

from nexus_tasks.types import Citation, ContextBlock, MemoryInfo, Recalls

if TYPE_CHECKING:
    from nexus_tasks.client import Nexus

FACTS, RESULTS, CONTEXT_TOKENS = 5, 3, 200
_MOST_JOBS, _MOST_MEMORIES, _ONE_LINE = 1_000, 1_000, 73


@dataclass(frozen=True, kw_only=True)
class Source:
    """A message from which a fact was derived."""

    id: int
    author: str
    at: datetime
    external_id: str | None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact and its sources. A search for ``gist`` should find the fact."""

    id: int
    subject: str
    category: str
    content: str
    gist: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A resolved contradiction: the fact that held earlier, and the fact that holds now."""

    id: int
    earlier: Fact
    now: Fact


@dataclass(frozen=True, kw_only=True)
class Digest:
    """The short digest of a session."""

    id: int
    session_key: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of the queue: finished jobs by kind, the median time from queued to started, and today's model calls."""

    jobs: Mapping[str, int]
    median_queued_ms: float | None
    model_calls: int
    spend_usd: float


@dataclass(frozen=True, kw_only=True)
class Story:
    """All that the report shows of one namespace."""

    namespace: str
    observer: str
    memories: Mapping[str, int]
    facts: tuple[Fact, ...]
    change: Change | None
    digest: Digest | None
    query: str
    results: Recalls
    context: ContextBlock
    figures: Figures


def choose_story(nexus: Nexus, namespace: str, query: str | None) -> Story:
    """Choose the memories to show. Without ``query`` the search is for the newest change, or else for the best fact."""
    space = nexus.namespace(namespace)
    change, digest = _change(nexus, namespace, query), _digest(nexus, namespace)
    facts = _facts(nexus, namespace)
    asked = query or (change.now.gist if change else facts[0].gist if facts else "what is new?")
    return Story(
        namespace=namespace,
        observer=", ".join(space.observers),
        memories=space.memories,
        facts=facts,
        change=change,
        digest=digest,
        query=asked,
        results=nexus.search(namespace, asked, limit=RESULTS),
        context=nexus.context(namespace, query=asked, max_tokens=CONTEXT_TOKENS),
        figures=_figures(nexus, namespace),
    )


def _facts(nexus: Nexus, namespace: str) -> tuple[Fact, ...]:
    """Choose five facts: the best of every category, then the second best of every category, and so on."""
    found = nexus.memories(namespace, levels=["explicit"], limit=_MOST_MEMORIES)
    # Facts of an observer about itself come last.
    found.sort(key=lambda memory: (memory.subject == memory.observer, *_sort_key(memory)))
    by_category: dict[str, list[MemoryInfo]] = {}
    for memory in found:
        by_category.setdefault(memory.category or "", []).append(memory)
    most = max((len(memories) for memories in by_category.values()), default=0)
    ranked = [memories[rank] for rank in range(most) for memories in by_category.values() if rank < len(memories)]
    return tuple(_fact(nexus, namespace, memory.id) for memory in ranked[:FACTS])


def _sort_key(memory: MemoryInfo) -> tuple[float, ...]:
    """The sort key of a fact. The most often reinforced facts come first, then the most confident facts.

    Of two equal facts, a fact that fits on one line comes first, and then the longer fact.
    """
    length = len(memory.content)
    return -memory.times_reinforced, -memory.confidence, length > _ONE_LINE, -length


def _fact(nexus: Nexus, namespace: str, memory_id: int) -> Fact:
    memory = nexus.memory(namespace, memory_id)
    return Fact(
        id=memory_id,
        subject=memory.subject or "",
        category=memory.category or "fact",
        content=memory.content,
        gist=" ".join(memory.labels) or memory.content,
        sources=_sources(nexus, namespace, memory.evidence),
    )


def _sources(nexus: Nexus, namespace: str, evidence: Sequence[Citation]) -> tuple[Source, ...]:
    messages = (nexus.memory(namespace, edge.id) for edge in evidence if edge.role == "derived_from")
    return tuple(
        Source(id=one.id, author=one.author or "", at=one.occurred_at, external_id=one.external_id) for one in messages
    )


def _change(nexus: Nexus, namespace: str, query: str | None) -> Change | None:
    """The contradiction nearest to ``query``, else the newest one. One of its two facts must be superseded."""
    only = ["contradiction"]
    if query:
        ids = [found.id for found in nexus.search(namespace, query, levels=only)]
    else:
        ids = [found.id for found in nexus.memories(namespace, levels=only)]
    for memory_id in ids:
        edges = nexus.memory(namespace, memory_id).evidence
        sides = [nexus.memory(namespace, edge.id) for edge in edges if edge.role == "contradicts"]
        earlier = next((side for side in sides if side.superseded_by), None)
        now = next((side for side in sides if not side.superseded_by), None)
        if earlier and now:
            return Change(
                id=memory_id,
                earlier=_fact(nexus, namespace, earlier.id),
                now=_fact(nexus, namespace, now.id),
            )
    return None


def _digest(nexus: Nexus, namespace: str) -> Digest | None:
    """The short digest of the newest session that has one."""
    for session in nexus.sessions(namespace):
        found = nexus.session(namespace, session.session_key, limit=0).digests.get("summary_short")
        if found:
            return Digest(id=found.id, session_key=session.session_key, content=found.content)
    return None


def _figures(nexus: Nexus, namespace: str) -> Figures:
    finished = [job for job in nexus.jobs(namespace=namespace, limit=_MOST_JOBS) if job.finished_at]
    waited = [
        (job.started_at - job.queued_at).total_seconds() * 1000 for job in finished if job.started_at and job.queued_at
    ]
    today = nexus.status(namespace).namespaces[0]
    return Figures(
        jobs=Counter(job.kind for job in finished),
        median_queued_ms=median(waited) if waited else None,
        model_calls=today.model_calls_today,
        spend_usd=today.spend_today_usd,
    )
