"""Context: what an agent should know now, under a hard token bound, every line with a citation.

Reads only, and never calls a model. The same call twice gives the same bytes, because prompt caches depend on it:
recency is measured from the newest memory, not from the clock.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from nexus_tasks.cognition.search import search
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.storage import digests, memories, messages, sessions
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.memories import Row
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import ContextBlock, ContextSection, to_utc

Format = Literal["text", "anthropic", "json"]

SHARE_DIGESTS, SHARE_CONTRADICTIONS, SHARE_REFLECTIONS = 0.40, 0.10, 0.25
MOST_CONTRADICTIONS = 2
MIN_CONFIDENCE = {"explicit": 0.70, "derived": 0.70, "contradiction": 0.65}
RECENCY_STEPS = ((1, 1.0), (6, 0.8), (24, 0.6), (72, 0.35))  # hours → weight; older: 0.15
OLDEST = 0.15
POOL = 300  # memories a section chooses from


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


@dataclass(kw_only=True)
class _Sheet:
    """The block as it grows; a line goes in only when it fits under its section's allowance and the whole bound."""

    max_tokens: int
    used: int = 0
    sections: list[ContextSection] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    citations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def section(
        self,
        title: str,
        rows: Sequence[Row],
        allowance: float,
        render: Callable[[Row], str],
        *,
        oldest_first: bool = False,
    ) -> float:
        """Add a section of as many rows as fit, the first ones first; returns what is left of ``allowance`` tokens."""
        heading = f"## {title}"
        budget = min(int(allowance), self.max_tokens - self.used) - _cost(heading)
        chosen: list[tuple[Row, str]] = []
        spent = 0
        for row in rows:
            line = " ".join(f"- [m{row.memory.id}] {render(row)}".split())
            if spent + _cost(line) > budget:
                # A digest is worth its beginning; a fact cut in half is worth nothing.
                if chosen or not row.memory.level.startswith("summary") or budget < 20:
                    continue
                line = shorten(line, 4 * (budget - 1))
            chosen.append((row, line))
            spent += _cost(line)
        if not chosen:
            return allowance
        if oldest_first:
            chosen.sort(key=lambda pair: pair[0].memory.seq or 0)
        for row, _ in chosen:
            self.citations[f"m{row.memory.id}"] = {"id": row.memory.id, "external_id": row.memory.external_id}
        tokens = spent + _cost(heading)
        self.lines += [heading, *(line for _, line in chosen)]
        self.sections.append(
            ContextSection(name=title.lower(), tokens=tokens, ids=tuple(row.memory.id for row, _ in chosen))
        )
        self.used += tokens
        return allowance - tokens


def _cost(line: str) -> int:
    return estimate_tokens(line + "\n")


def assemble(tx: Transaction, embedder: Embedder, ask: Ask) -> ContextBlock:
    """Assemble the block: digests, contradictions, reflections, facts, the un-derived tail; unused shares flow on."""
    sheet = _Sheet(max_tokens=ask.max_tokens)
    whole = ask.max_tokens
    spare = sheet.section("Digest", _digests(tx, ask), SHARE_DIGESTS * whole, lambda row: row.memory.content)
    wanted = Filter(namespace_id=ask.namespace_id, observer=ask.observer, subject=ask.subject)
    spare += sheet.section(
        "Contradictions",
        _ranked(tx, wanted, "contradiction")[:MOST_CONTRADICTIONS],
        SHARE_CONTRADICTIONS * whole,
        _about,
    )
    sheet.section("Reflections", _ranked(tx, wanted, "derived"), SHARE_REFLECTIONS * whole + spare, _about)
    sheet.section("Facts", _facts(tx, embedder, wanted, ask), whole, _about)
    sheet.section("Not yet derived", _tail(tx, ask), whole, _said, oldest_first=True)
    text = "\n".join(sheet.lines)
    return ContextBlock(
        namespace=ask.namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=whole,
        sections=tuple(sheet.sections),
        citations=sheet.citations,
    )


def rendered(block: ContextBlock, form: Format) -> ContextBlock:
    """The block in another form: Anthropic ``messages`` to put first, or JSON in ``text``. The bound holds in each."""
    if form == "anthropic":
        content = [{"type": "text", "text": block.text}] if block.text else []
        return replace(block, messages=({"role": "user", "content": content},) if content else ())
    return _as_json(block) if form == "json" else block


def _as_json(block: ContextBlock) -> ContextBlock:
    """The block as a JSON object, less the last lines for which its punctuation leaves no room; ``{}`` without any."""
    cited = sum(len(section.ids) for section in block.sections)
    # The longest beginning that fits: the length of the text grows with the number of lines.
    most = bisect_right(range(cited + 1), block.max_tokens, key=lambda n: estimate_tokens(_json(_first(block, n)))) - 1
    if most < 0:
        return replace(block, text="{}", tokens=1, sections=(), citations={})
    kept = _first(block, most)
    text = _json(kept)
    return replace(kept, text=text, tokens=estimate_tokens(text))


def _first(block: ContextBlock, cited: int) -> ContextBlock:
    """The block with only the first so many of its cited lines."""
    lines, sections, at = block.text.splitlines(), list[ContextSection](), 0
    kept: list[str] = []
    for section in block.sections:
        ids = section.ids[:cited]
        if ids:
            chosen = lines[at : at + 1 + len(ids)]
            kept += chosen
            sections.append(replace(section, ids=ids, tokens=sum(map(_cost, chosen))))
        at += 1 + len(section.ids)
        cited -= len(ids)
    citations = {f"m{i}": block.citations[f"m{i}"] for section in sections for i in section.ids}
    return replace(block, text="\n".join(kept), sections=tuple(sections), citations=citations)


def _json(block: ContextBlock) -> str:
    sections = [{"name": section.name, "ids": section.ids} for section in block.sections]
    body = {"namespace": block.namespace, "sections": sections, "lines": block.text.splitlines()}
    return json.dumps(body, ensure_ascii=False)


def _digests(tx: Transaction, ask: Ask) -> list[Row]:
    if ask.session_key is None:
        return []
    session = sessions.find(tx, ask.namespace_id, ask.session_key)
    current = digests.latest(tx, session.id) if session else {}
    # The long one when there is room for it, else the short one; never both, they say the same.
    for kind in ("long", "short"):
        if kind in current:
            row = Row(memory=current[kind], session_key=ask.session_key, observer=None, subject=None)
            fits = _cost(f"- [m{row.memory.id}] {row.memory.content}") + 8 <= SHARE_DIGESTS * ask.max_tokens
            if fits or kind == "short":
                return [row]
    return []


def _ranked(tx: Transaction, wanted: Filter, level: str) -> list[Row]:
    """Memories of a level by recency, confidence and reinforcement, those of too little confidence left out."""
    narrowed = Filter(
        namespace_id=wanted.namespace_id, observer=wanted.observer, subject=wanted.subject, levels=(level,)
    )
    rows = [row for row in memories.every(tx, narrowed, POOL) if row.memory.confidence >= MIN_CONFIDENCE[level]]
    newest = max((row.memory.occurred_at for row in rows), default=None)
    return sorted(rows, key=lambda row: (-_weight(row, newest), -row.memory.occurred_at.timestamp(), row.memory.id))


def _weight(row: Row, newest: datetime | None) -> float:
    assert newest is not None
    hours = (newest - row.memory.occurred_at).total_seconds() / 3_600
    recency = next((weight for most, weight in RECENCY_STEPS if hours <= most), OLDEST)
    return recency + row.memory.confidence + 0.1 * min(row.memory.times_reinforced, 5)


def _facts(tx: Transaction, embedder: Embedder, wanted: Filter, ask: Ask) -> list[Row]:
    if not ask.query:
        return _ranked(tx, wanted, "explicit")
    narrowed = Filter(
        namespace_id=wanted.namespace_id, observer=wanted.observer, subject=wanted.subject, levels=("explicit",)
    )
    hits = search(tx, embedder, narrowed, ask.query, POOL)
    found = memories.by_id(tx, ask.namespace_id, [hit.id for hit in hits])
    return [found[hit.id] for hit in hits if found[hit.id].memory.confidence >= MIN_CONFIDENCE["explicit"]]


def _tail(tx: Transaction, ask: Ask) -> list[Row]:
    """The session's messages that no fact has been derived from yet, newest first: those are what was said last."""
    session = sessions.find(tx, ask.namespace_id, ask.session_key) if ask.session_key else None
    if session is None:
        return []
    waiting = {memory_id for memory_id, _ in sessions.wanted_memories(tx, session.id)}
    raw = reversed(messages.window(tx, session.id, 0, session.last_seq, limit=POOL))
    return [Row(memory=m, session_key=ask.session_key, observer=None, subject=m.author) for m in raw if m.id in waiting]


def _about(row: Row) -> str:
    return f"{to_utc(row.memory.occurred_at):%Y-%m-%d} {row.subject}: {row.memory.content}"


def _said(row: Row) -> str:
    return f"{to_utc(row.memory.occurred_at):%Y-%m-%d %H:%M} {row.memory.author}: {row.memory.content}"
