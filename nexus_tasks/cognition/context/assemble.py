"""Choose the memories of a context, their order, and each section's share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nexus_tasks.cognition.context.token_budget import BudgetedBlock, line_tokens
from nexus_tasks.cognition.echo import told_by, without_echo
from nexus_tasks.cognition.retrieval import ranking
from nexus_tasks.embeddings.base import Embedder
from nexus_tasks.event_time import local
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import estimate_tokens
from nexus_tasks.types import ContextBlock

# Each section's share of a block's tokens, the least confidence of a shown memory, and the weights of its recency. All
# numbers are chosen by hand, not measured.
SHARE_DIGESTS, SHARE_CONTRADICTIONS, SHARE_REFLECTIONS = 0.40, 0.10, 0.25
MOST_CONTRADICTIONS = 2
MIN_CONFIDENCE = {"explicit": 0.70, "derived": 0.70, "contradiction": 0.65}
RECENCY_STEPS = ((1, 1.0), (6, 0.8), (24, 0.6), (72, 0.35))  # (greatest age in hours, weight)
OLDEST = 0.15  # the weight of a memory that is older than 72 hours
REINFORCEMENT = 0.1  # the weight of each repetition of a memory, for at most five repetitions
# Both numbers are chosen by hand, not measured.
POOL = 300  # the most memories from which a section chooses
FACT_TOKENS = 16  # tokens of a short fact's line. A block of 800 tokens needs a search for 800 / 16 + 1 = 51 facts.


@dataclass(frozen=True, kw_only=True)
class ContextRequest:
    """A caller's request for a context.

    ``observer`` and ``subject`` select perspectives. ``None`` selects all observers or all subjects.
    """

    namespace: str
    namespace_id: int
    session_key: str | None
    query: str | None
    observer: str | None
    subject: str | None
    max_tokens: int
    min_standing: int | None = None


def assemble(tx: Transaction, embedder: Embedder, ask: ContextRequest) -> ContextBlock:
    """Choose the memories of a context and render them as a block of at most ``ask.max_tokens`` tokens.

    The block has these sections, in this order:

    - the session's digest, at most 40 % of the tokens
    - contradictions, at most 10 % of the tokens and at most two contradictions
    - reflections, at most 25 % of the tokens, plus the tokens that the digest and the contradictions did not use
    - facts, in the tokens that are left
    - the session's messages from which no facts were derived yet, in the tokens that are still left
    """
    wanted = Filter(
        namespace_id=ask.namespace_id, observer=ask.observer, subject=ask.subject, min_standing=ask.min_standing
    )
    levels = ["contradiction", "derived", *([] if ask.query else ["explicit"])]
    found = context_rows.newest(tx, wanted, [(level, MIN_CONFIDENCE[level]) for level in levels], POOL)
    facts = _by_query(tx, embedder, wanted, ask.query, ask.max_tokens) if ask.query else _ranked(found["explicit"])
    digests, tail = context_rows.of_session(tx, wanted, ask.session_key, POOL) if ask.session_key else ({}, [])
    whole, block = ask.max_tokens, BudgetedBlock(max_tokens=ask.max_tokens)
    share = SHARE_DIGESTS * whole
    spare = block.section("Digest", _digest_that_fits(digests, share), share, lambda line: line.content)
    contradictions = _ranked(found["contradiction"])[:MOST_CONTRADICTIONS]
    spare += block.section("Contradictions", contradictions, SHARE_CONTRADICTIONS * whole, _dated_to_the_day)
    block.section("Reflections", _ranked(found["derived"]), SHARE_REFLECTIONS * whole + spare, _dated_to_the_day)
    block.section("Facts", facts, whole, _dated_to_the_day)
    block.section(
        "Not yet derived", _without_echoes(tx, ask.namespace_id, tail), whole, _dated_to_the_minute, oldest_first=True
    )
    text = "\n".join(block.lines)
    return ContextBlock(
        namespace=ask.namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=whole,
        sections=tuple(block.sections),
        citations=block.citations,
    )


def _digest_that_fits(digests: dict[str, ContextRow], share: float) -> list[ContextRow]:
    """The long digest when it fits, else the short digest. The two cover the same messages, so one is enough."""
    for level in ("summary_long", "summary_short"):
        if line := digests.get(level):
            fits = line_tokens(f"- [m{line.id}] {line.content}") + 8 <= share
            if fits or level == "summary_short":
                return [line]
    return []


def _ranked(found: Sequence[ContextRow]) -> list[ContextRow]:
    """Memories sorted by weight (see :func:`_weight`), the greatest weight first."""
    newest = max((line.occurred_at for line in found), default=None)
    return sorted(found, key=lambda line: (-_weight(line, newest), -_when(line).timestamp(), line.id))


def _when(line: ContextRow) -> datetime:
    """The time that orders memories of equal weight: the time of which a fact speaks, or else when it was said."""
    return line.event_from or line.occurred_at


def _weight(line: ContextRow, newest: datetime | None) -> float:
    """The weight of a memory: recency + confidence + 0.1 · min(repetitions, 5).

    Recency depends on the hours between this memory and the newest memory (see :data:`RECENCY_STEPS`). Example: a fact
    is 3 hours older than the newest fact, has a confidence of 0.9 and was repeated twice. The fact's weight is
    0.8 + 0.9 + 0.2 = 1.9.
    """
    assert newest is not None
    hours = (newest - line.occurred_at).total_seconds() / 3_600
    recency = next((weight for most, weight in RECENCY_STEPS if hours <= most), OLDEST)
    return recency + line.confidence + REINFORCEMENT * min(line.times_reinforced, 5)


def _by_query(tx: Transaction, embedder: Embedder, wanted: Filter, query: str, max_tokens: int) -> list[ContextRow]:
    """The facts that a search for ``query`` finds, best first."""
    limit = min(POOL, max_tokens // FACT_TOKENS + 1)
    ranked, _ = ranking(tx, embedder, replace(wanted, levels=("explicit",)), query, limit)
    found = context_rows.by_id(tx, wanted.namespace_id, [one.id for one in ranked], MIN_CONFIDENCE["explicit"])
    return [found[one.id] for one in ranked if one.id in found]


def _without_echoes(tx: Transaction, namespace_id: int, tail: Sequence[ContextRow]) -> list[ContextRow]:
    """Messages without their echoed lines. A message is left out when all its lines are echoes."""
    told = told_by(tx, namespace_id, ((line.role or "user", line.content) for line in tail))
    said = (line._replace(content=without_echo(line.content, line.role or "user", told)) for line in tail)
    return [line for line in said if line.content]


def _dated_to_the_day(line: ContextRow) -> str:
    event = f" ({line.event})" if line.event else ""
    return f"{local(line.occurred_at, line.time_zone):%Y-%m-%d} {line.subject}: {line.content}{event}"


def _dated_to_the_minute(line: ContextRow) -> str:
    return f"{local(line.occurred_at, line.time_zone):%Y-%m-%d %H:%M} {line.subject}: {line.content}"
