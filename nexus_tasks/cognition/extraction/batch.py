"""Choose the messages that an extractor reads next. An extractor waits until enough messages are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from nexus_tasks.cognition.echo import told_by, without_echo
from nexus_tasks.cognition.extraction import tool_calls
from nexus_tasks.cognition.observing import message_text
from nexus_tasks.llm.answers import PromptLine
from nexus_tasks.storage import extractions, messages
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.extractions import Extractor
from nexus_tasks.storage.models import Extraction, Memory, SessionRow
from nexus_tasks.storage.shown import LONGEST_BEGINNING, REACH
from nexus_tasks.text import content_words, estimate_tokens, shorten

# An extractor reads messages only when its gate is open. A gate opens when one of these numbers is reached. The numbers
# are chosen by hand, not measured.
# The topic extractor's gate opens at this many new messages.
TOPICS_FROM = 4
# Before the first batch, the fact extractor's gate opens when the session has this many messages. After the first
# batch, the gate opens at this many new messages.
FACTS_FROM = 20
# After the first batch, this many new tool calls also open the fact extractor's gate.
FACTS_FROM_CALLS = 3
# An extractor reads at most this many messages at once. What it takes from them is far less, unless it skips most.
MOST_READ = REACH
# Words that say nothing when a message has no others, as ``content_words`` returns them.
_SMALL_TALK = frozenset(content_words("hi hello hey ok okay thanks thank please great bye continue"))


@dataclass(frozen=True, kw_only=True)
class ExtractionBatch:
    """The next messages of a session for one extractor.

    Attributes:
        through: the seq (the position in the session) of the last message of the batch.
        lines: the messages as the model sees them.
    """

    seen: Extraction
    extractor: Extractor
    session_id: int
    through: int
    lines: tuple[PromptLine, ...]


def next_batch(
    tx: Transaction, session: SessionRow, row: Extraction, extractor: Extractor, most: int
) -> ExtractionBatch | str:
    """The next batch after the cursor, or a text that says why the gate is closed.

    After the session's end no message follows. So any new message in which a person says something opens the gate.

    A batch has at most ``most`` tokens, unless one message alone has more. When more messages follow than are read at
    once, the gate is open, and a batch of skipped messages alone has no lines. Two sorts of messages are skipped:
    system messages, and messages with which the agent wrote memory itself (see ``tool_calls.memory_writing_messages``).
    Skipped messages do not count for the gate. The gate of the first batch of facts is an exception, because it counts
    messages with which the agent wrote memory.
    """
    after = extractions.last_read_seq(row, extractor)
    pending, more = messages.bounded(tx, session.id, after, MOST_READ)
    skipped = tool_calls.memory_writing_messages(pending)
    new = [message for message in pending if message.id not in skipped and message.role != "system"]
    closed = _why_closed(tx, session, extractor, new, first=after == 0)
    if closed and new and session.ended_at is not None:
        closed = "" if any(map(_says_something, new)) else f"no person says anything that is new for {extractor}"
    if closed and not more:
        return closed
    taken, used = list[Memory](), 0
    for message in new:
        tokens = estimate_tokens(message_text.text_of(message))
        if taken and used + tokens > most:
            break
        taken.append(message)
        used += tokens
    through = max(message.seq or 0 for message in (pending if len(taken) == len(new) else taken))
    told = told_by(tx, session.namespace_id, ((message.role or "user", message.content) for message in taken))
    lines = tuple(line for message in taken if (line := _line(message, min(4 * most, LONGEST_BEGINNING), told)).content)
    return ExtractionBatch(seen=row, extractor=extractor, session_id=session.id, through=through, lines=lines)


def _why_closed(
    tx: Transaction, session: SessionRow, extractor: Extractor, new: Sequence[Memory], *, first: bool
) -> str:
    """Why the gate of an extractor is closed, or an empty text when the gate is open."""
    if not new:
        return f"no message is new for {extractor}"
    if extractor == "topics":
        return "" if len(new) >= TOPICS_FROM else f"{len(new)} of the {TOPICS_FROM} new messages that topics need"
    if not first:
        calls = tool_calls.count_calls(new)
        if len(new) >= FACTS_FROM or calls >= FACTS_FROM_CALLS:
            return ""
        return (
            f"{len(new)} of the {FACTS_FROM} new messages, or {calls} of the {FACTS_FROM_CALLS} tool calls, that facts"
            " need"
        )
    said = select(func.count()).where(Memory.session_id == session.id, Memory.level == "raw", Memory.role != "system")
    count = tx.scalar(said) or 0
    return "" if count >= FACTS_FROM else f"{count} of the {FACTS_FROM} messages that facts need"


def _says_something(message: Memory) -> bool:
    """Whether a person says something in the message. A greeting or an "ok" says nothing."""
    return message.role in (None, "user") and bool(set(content_words(message.content)) - _SMALL_TALK)


def _line(message: Memory, most: int, told: Mapping[int, str]) -> PromptLine:
    return PromptLine(
        id=message.id,
        author=message.author or message.role or "user",
        role=message.role or "user",
        content=shorten(without_echo(message_text.text_of(message), message.role or "user", told), most),
        occurred_at=message.occurred_at,
        time_zone=message.time_zone,
    )
