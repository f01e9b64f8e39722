"""Choose the memories of a context, their order, and each section's share of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nexus_tasks.cognition.context import by_query, profile
from nexus_tasks.cognition.context.token_budget import BudgetedBlock, line_tokens
from nexus_tasks.cognition.echo import told_by, without_echo
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
POOL = 300  # the most memories from which a section chooses
LINE_TOKENS = 16  # tokens of a short fact's line


@dataclass(frozen=True, kw_only=True)
class ContextRequest:
    """A caller's request for a context.

    ``observer`` and ``subject`` select perspectives. ``None`` selects all observers or all subjects. With
    ``heard_only``, messages that the observer did not hear are left out, and so are digests. The block begins with the
    profile of ``profile_of``. The messages ``without`` and facts from them are left out, because the reader sees them
    elsewhere. So are memories for which ``leave_out`` returns ``True``.
    """

    namespace: str
    namespace_id: int
    session_key: str | None
    query: str | None
    observer: str | None
    subject: str | None
    max_tokens: int
    min_standing: int | None = None
    heard_only: bool = False
    profile_of: str | None = None
    without: frozenset[int] = frozenset()
    leave_out: Callable[[ContextRow], bool] | None = None


def assemble(tx: Transaction, embedder: Embedder, ask: ContextRequest) -> ContextBlock:
    """Choose the memories of a context (:func:`choose`), and render them as a block."""
    block = choose(tx, embedder, ask)
    text = "\n".join(block.lines())
    return ContextBlock(
        namespace=ask.namespace,
        text=text,
        tokens=estimate_tokens(text),
        max_tokens=ask.max_tokens,
        sections=block.shown(),
        citations=block.citations(),
    )


def choose(tx: Transaction, embedder: Embedder, ask: ContextRequest) -> BudgetedBlock:
    """Choose the memories of a context, at most ``ask.max_tokens`` tokens.

    The block has these sections, in this order:

    - the profile of ``ask.profile_of``, at most 25 % of the tokens and at most 500 tokens
    - the session's digest, at most 40 % of the tokens
    - contradictions, at most 10 % of the tokens and at most two contradictions
    - reflections, at most 25 % of the tokens
    - facts
    - with a query: the messages that fit it and that no shown fact tells. Facts and messages have half of the rest
      each, and what one half does not need goes to the other
    - the session's messages from which no facts were derived yet, in the tokens that are still left

    With a query, contradictions and reflections that do not touch it are left out. Without a query, reflections may
    also use the tokens that no other section needs.
    """
    wanted = Filter(
        namespace_id=ask.namespace_id,
        observer=ask.observer,
        subject=ask.subject,
        min_standing=ask.min_standing,
        heard_only=ask.heard_only,
    )
    whole, block = ask.max_tokens, BudgetedBlock(max_tokens=ask.max_tokens)
    longest = context_rows.longest_text(whole)
    digests, tail = (
        context_rows.of_session(tx, wanted, ask.session_key, POOL, longest=longest) if ask.session_key else ({}, [])
    )
    about = profile.section(block)
    digest = block.section("Digest", lambda line: line.content)
    contradictions = block.section("Contradictions", _dated_to_the_day)
    reflections = block.section("Reflections", _dated_to_the_day)
    facts = block.section("Facts", _dated_to_the_day)
    messages = block.section("Messages", _dated_to_the_day)
    underived = block.section("Not yet derived", _dated_to_the_minute)
    if ask.profile_of is not None:
        profile.fill(
            tx,
            replace(wanted, subject=ask.profile_of),
            about,
            min(profile.MOST_TOKENS, profile.SHARE * whole),
            ask.leave_out,
        )
    digest.fill(_digest_that_fits(digests, SHARE_DIGESTS * whole), SHARE_DIGESTS * whole)
    if ask.query:
        fitting = by_query.find(
            tx, embedder, wanted, ask.query, limit=_limit(whole), least=MIN_CONFIDENCE, longest=longest
        )
        contradictions.fill(fitting.contradictions[:MOST_CONTRADICTIONS], SHARE_CONTRADICTIONS * whole)
        reflections.fill(fitting.reflections, SHARE_REFLECTIONS * whole)
        lines = [line for line in fitting.lines if not {line.id, *fitting.sources.get(line.id, ())} & ask.without]
        by_query.fill(replace(fitting, lines=lines), facts, messages)
        messages.sort(_in_order_of_time)
        later: Sequence[ContextRow] = ()
    else:
        found = context_rows.newest(tx, wanted, list(MIN_CONFIDENCE.items()), POOL, longest=longest)
        contradictions.fill(
            _kept(_ranked(found["contradiction"]), ask)[:MOST_CONTRADICTIONS], SHARE_CONTRADICTIONS * whole
        )
        later = _kept(_ranked(found["derived"]), ask)
        reflections.fill(later, SHARE_REFLECTIONS * whole)
        facts.fill(_kept(_ranked(found["explicit"]), ask), whole)
    underived.fill(
        (line for line in _without_echoes(tx, ask.namespace_id, tail) if line.id not in messages.rows), whole
    )
    underived.sort(lambda line: (line.seq or 0,))
    reflections.fill(later, whole)
    return block


def _kept(rows: Iterable[ContextRow], ask: ContextRequest) -> list[ContextRow]:
    return [row for row in rows if ask.leave_out is None or not ask.leave_out(row)]


def _limit(tokens: int) -> int:
    """How many memories a search finds for a block of ``tokens`` tokens: more than fit, as some are left out."""
    return min(POOL, tokens // LINE_TOKENS * 2 + 20)


def _digest_that_fits(digests: dict[str, ContextRow], share: float) -> list[ContextRow]:
    """The long digest when it fits, else the short digest. The two cover the same messages, so one is enough."""
    for level in ("summary_long", "summary_short"):
        if line := digests.get(level):
            fits = line_tokens(f"- [m{line.id}] {line.content}") + 8 <= share
            if fits or level == "summary_short":
                return [line]
    return []


def _ranked(found: Sequence[ContextRow]) -> list[ContextRow]:
    """Pinned memories first, then memories sorted by weight (see :func:`_weight`), the greatest weight first."""
    newest = max((line.occurred_at for line in found), default=None)
    return sorted(found, key=lambda line: (not line.pinned, -_weight(line, newest), -_when(line).timestamp(), line.id))


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


def _without_echoes(tx: Transaction, namespace_id: int, tail: Sequence[ContextRow]) -> list[ContextRow]:
    """Messages without their echoed lines. A message is left out when all its lines are echoes."""
    told = told_by(tx, namespace_id, ((line.role or "user", line.content) for line in tail))
    said = (line._replace(content=without_echo(line.content, line.role or "user", told)) for line in tail)
    return [line for line in said if line.content]


def _dated_to_the_day(line: ContextRow) -> str:
    event = f" ({line.event})" if line.event else ""
    return f"{local(line.occurred_at, line.time_zone):%Y-%m-%d} {line.subject}: {line.content}{event}{line.later}"


def _dated_to_the_minute(line: ContextRow) -> str:
    return f"{local(line.occurred_at, line.time_zone):%Y-%m-%d %H:%M} {line.subject}: {line.content}"


def _in_order_of_time(line: ContextRow) -> tuple[float, ...]:
    return (bool(line.later), line.occurred_at.timestamp(), line.seq or 0, line.id)
