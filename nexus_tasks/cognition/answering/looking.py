"""Find the lines from which a question is answered: first by a search, then as the model asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nexus_tasks import limits
from nexus_tasks.cognition.context import ContextRequest, choose
from nexus_tasks.cognition.resources import Resources
from nexus_tasks.cognition.retrieval import EmbeddedQuestion
from nexus_tasks.llm.answers import AnswerLine, Lookup
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.searching import context_rows
from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.storage.searching.scope import Filter
from nexus_tasks.text import estimate_tokens, shorten

# All chosen by hand, not measured.
FIRST_TOKENS, MORE_TOKENS = 2_000, 1_000  # tokens of the first lines, and of those of a later look
TURNS_AROUND = 5  # turns before a memory, and as many after it
MOST_OF_SPAN = 100  # memories of a span of time
LONGEST_LINE = 2_000  # characters


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """A caller's question. ``observer`` and ``subject`` select memories; ``None`` selects all."""

    namespace: str
    namespace_id: int
    question: str
    observer: str | None = None
    subject: str | None = None
    heard_only: bool = False


def first(resources: Resources, asked: AnswerRequest) -> dict[int, AnswerLine]:
    """The lines that fit the question: id → line."""
    return _search(resources, asked, asked.question, FIRST_TOKENS)


def again(resources: Resources, asked: AnswerRequest, wanted: Lookup, shown: Collection[int]) -> dict[int, AnswerLine]:
    """The lines that the model asked for, without those that it was shown: id → line."""
    if wanted.kind == "search":
        query = (wanted.query or asked.question)[: limits.QUERY_CHARACTERS]
        found = _search(resources, asked, query, MORE_TOKENS)
        return {i: line for i, line in found.items() if i not in shown}
    scope = Filter(namespace_id=asked.namespace_id, observer=asked.observer, subject=None, heard_only=asked.heard_only)
    with resources.database.reading() as tx:
        rows = _around(tx, scope, wanted, shown) if wanted.kind == "around" else _span(tx, scope, wanted)
    return _within(MORE_TOKENS, (_line(row) for row in rows if row.id not in shown))


def described(wanted: Lookup) -> str:
    """What was looked for, in a few words."""
    if wanted.kind == "search":
        return f"search {shorten(wanted.query or '', 100)!r}"
    if wanted.kind == "around":
        return f"around {wanted.memory_id}"
    since, until = (shorten(str(moment), 40) for moment in (wanted.since, wanted.until))
    return f"span {since} to {until}"


def _search(resources: Resources, asked: AnswerRequest, query: str, tokens: int) -> dict[int, AnswerLine]:
    request = ContextRequest(
        namespace=asked.namespace,
        namespace_id=asked.namespace_id,
        session_key=None,
        query=query,
        observer=asked.observer,
        subject=asked.subject,
        heard_only=asked.heard_only,
        max_tokens=tokens,
    )
    embedder = EmbeddedQuestion(resources.embedder, query)
    with resources.database.reading() as tx:
        block = choose(tx, embedder, request)
    return {row.id: _line(row) for section in block.sections for row in section.chosen}


def _around(tx: Transaction, scope: Filter, wanted: Lookup, shown: Collection[int]) -> list[ContextRow]:
    if wanted.memory_id is None or wanted.memory_id not in shown:  # the model may only name what it has seen
        return []
    return context_rows.around(tx, scope, wanted.memory_id, TURNS_AROUND, characters=LONGEST_LINE + 1)


def _span(tx: Transaction, scope: Filter, wanted: Lookup) -> list[ContextRow]:
    try:
        since = datetime.fromisoformat(wanted.since or "").replace(tzinfo=UTC)
        until = datetime.fromisoformat(wanted.until or wanted.since or "").replace(tzinfo=UTC)
        until += timedelta(days=1)
    except ValueError:
        return []
    except OverflowError:  # behind the last day that Python knows
        until = datetime.max.replace(tzinfo=UTC)
    return context_rows.between(tx, scope, since, until, MOST_OF_SPAN, characters=LONGEST_LINE + 1)


def _within(tokens: int, lines: Iterable[AnswerLine]) -> dict[int, AnswerLine]:
    found: dict[int, AnswerLine] = {}
    for line in lines:
        tokens -= estimate_tokens(line.content) + 8
        if tokens < 0:
            break
        found[line.id] = line
    return found


def _line(row: ContextRow) -> AnswerLine:
    event = f" ({row.event})" if row.event else ""
    return AnswerLine(
        id=row.id,
        external_id=row.external_id,
        who=row.subject or "",
        content=f"{shorten(row.content, LONGEST_LINE)}{event}{row.later}",
        occurred_at=row.occurred_at,
        level=row.level,
        score=row.score,
    )
