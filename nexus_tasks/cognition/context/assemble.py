"""Which memories go into a context, in what order, and with what share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nexus_tasks.cognition.context.token_budget import Sheet, cost
from nexus_tasks.cognition.echo import without_echo
from nexus_tasks.cognition.retrieval import ranking
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import ContextBlock, to_utc

SHARE_DIGESTS, SHARE_CONTRADICTIONS, SHARE_REFLECTIONS = 0.40, 0.10, 0.25
MOST_CONTRADICTIONS = 2
MIN_CONFIDENCE = {"explicit": 0.70, "derived": 0.70, "contradiction": 0.65}
RECENCY_STEPS = ((1, 1.0), (6, 0.8), (24, 0.6), (72, 0.35))  # hours → weight; older: 0.15
OLDEST = 0.15
POOL = 300  # memories a section chooses from
FACT_TOKENS = 16  # hardly a line is shorter: a small block looks for fewer facts


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a context is asked for."""

    namespace: str
    namespace_id: int
    session_key: str | None
    query: str | None
    observer: str | None
    subject: str | None
    max_tokens: int


def assemble(tx: Transaction, embedder: Embedder, ask: Ask) -> ContextBlock:
    """Assemble the block: digests, contradictions, reflections, facts, the un-derived tail; unused shares flow on."""
    wanted = Filter(namespace_id=ask.namespace_id, observer=ask.observer, subject=ask.subject)
    levels = ["contradiction", "derived", *([] if ask.query else ["explicit"])]
    found = context_rows.newest(tx, wanted, [(level, MIN_CONFIDENCE[level]) for level in levels], POOL)
    facts = _by_query(tx, embedder, wanted, ask.query, ask.max_tokens) if ask.query else _ranked(found["explicit"])
    digests, tail = context_rows.of_session(tx, wanted, ask.session_key, POOL) if ask.session_key else ({}, [])
    whole, sheet = ask.max_tokens, Sheet(max_tokens=ask.max_tokens)
    share = SHARE_DIGESTS * whole
    spare = sheet.section("Digest", _digest(digests, share), share, lambda line: line.content)
    contradictions = _ranked(found["contradiction"])[:MOST_CONTRADICTIONS]
    spare += sheet.section("Contradictions", contradictions, SHARE_CONTRADICTIONS * whole, _about)
    sheet.section("Reflections", _ranked(found["derived"]), SHARE_REFLECTIONS * whole + spare, _about)
    sheet.section("Facts", facts, whole, _about)
    sheet.section("Not yet derived", _news(tail), whole, _said, oldest_first=True)
    text = "\n".join(sheet.lines)
    return ContextBlock(
        namespace=ask.namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=whole,
        sections=tuple(sheet.sections),
        citations=sheet.citations,
    )


def _digest(digests: dict[str, ContextRow], share: float) -> list[ContextRow]:
    """The long digest when there is room for it, else the short one; never both, they say the same."""
    for level in ("summary_long", "summary_short"):
        if line := digests.get(level):
            fits = cost(f"- [m{line.id}] {line.content}") + 8 <= share
            if fits or level == "summary_short":
                return [line]
    return []


def _ranked(found: Sequence[ContextRow]) -> list[ContextRow]:
    """Memories by recency, confidence and reinforcement; recency counts from the newest one, not from the clock."""
    newest = max((line.occurred_at for line in found), default=None)
    return sorted(found, key=lambda line: (-_weight(line, newest), -line.occurred_at.timestamp(), line.id))


def _weight(line: ContextRow, newest: datetime | None) -> float:
    assert newest is not None
    hours = (newest - line.occurred_at).total_seconds() / 3_600
    recency = next((weight for most, weight in RECENCY_STEPS if hours <= most), OLDEST)
    return recency + line.confidence + 0.1 * min(line.times_reinforced, 5)


def _by_query(tx: Transaction, embedder: Embedder, wanted: Filter, query: str, max_tokens: int) -> list[ContextRow]:
    """Facts as a search finds them, best first."""
    limit = min(POOL, max_tokens // FACT_TOKENS + 1)
    ranked, _ = ranking(tx, embedder, replace(wanted, levels=("explicit",)), query, limit)
    found = context_rows.by_id(tx, wanted.namespace_id, [one.id for one in ranked], MIN_CONFIDENCE["explicit"])
    return [found[one.id] for one in ranked if one.id in found]


def _news(tail: Sequence[ContextRow]) -> list[ContextRow]:
    """Messages without what only repeats an earlier context."""
    said = (line._replace(content=without_echo(line.content)) for line in tail)
    return [line for line in said if line.content]


def _about(line: ContextRow) -> str:
    return f"{to_utc(line.occurred_at):%Y-%m-%d} {line.subject}: {line.content}"


def _said(line: ContextRow) -> str:
    return f"{to_utc(line.occurred_at):%Y-%m-%d %H:%M} {line.subject}: {line.content}"
