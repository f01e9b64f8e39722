"""Which messages an extractor reads next, if its gate lets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from nexus_tasks.cognition.echo import without_echo
from nexus_tasks.cognition.extraction import turn
from nexus_tasks.cognition.observing import render
from nexus_tasks.llm.answers import Line
from nexus_tasks.storage import extractions, messages
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.extractions import Extractor
from nexus_tasks.storage.models import Extraction, Memory, SessionRow
from nexus_tasks.text import estimate_tokens, shorten

TOPICS_FROM = 4  # new messages
FACTS_FROM = 20  # messages in the session; and, after the first time, new messages
FACTS_FROM_CALLS = 3  # new tool calls that are as good as 20 messages


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The next messages of a session for one extractor: up to ``through`` they are read, ``lines`` are shown."""

    seen: Extraction
    extractor: Extractor
    session_id: int
    through: int
    lines: tuple[Line, ...]


def following(tx: Transaction, session: SessionRow, row: Extraction, extractor: Extractor, most: int) -> Batch | None:
    """The batch behind the cursor, about ``most`` tokens of it; ``None`` when the gate is closed.

    Messages in which the agent wrote memory itself are passed over, and open no gate; system prompts likewise.
    """
    after = extractions.last_read_seq(row, extractor)
    pending = messages.window(tx, session.id, after, messages.UNBOUNDED_SEQ)
    passed = turn.self_written(pending)
    new = [message for message in pending if message.id not in passed and message.role != "system"]
    if not _open(tx, session, extractor, new, first=after == 0):
        return None
    taken, used = list[Memory](), 0
    for message in new:
        tokens = estimate_tokens(render.said(message))
        if taken and used + tokens > most:
            break
        taken.append(message)
        used += tokens
    through = max(message.seq or 0 for message in (pending if len(taken) == len(new) else taken))
    lines = tuple(line for message in taken if (line := _line(message, 4 * most)).content)
    return Batch(seen=row, extractor=extractor, session_id=session.id, through=through, lines=lines)


def _open(tx: Transaction, session: SessionRow, extractor: Extractor, new: Sequence[Memory], *, first: bool) -> bool:
    if extractor == "topics":
        return len(new) >= TOPICS_FROM
    if not first:
        return len(new) >= FACTS_FROM or turn.called(new) >= FACTS_FROM_CALLS
    said = select(func.count()).where(Memory.session_id == session.id, Memory.level == "raw", Memory.role != "system")
    return bool(new) and (tx.scalar(said) or 0) >= FACTS_FROM


def _line(message: Memory, most: int) -> Line:
    return Line(
        id=message.id,
        author=message.author or message.role or "user",
        role=message.role or "user",
        content=shorten(without_echo(render.said(message)), most),
        occurred_at=message.occurred_at,
    )
