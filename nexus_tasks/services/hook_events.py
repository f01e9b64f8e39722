"""Find the messages to store after a coding agent's hook has reported events of a session.

The messages come from the agent's transcript (the file in which the agent records a session). When the transcript lacks
the message of an event, a message that is made from the hook's event is stored instead. The transcripts of Cursor are
not read, so all its messages are made from events. The context type of a buffer's entry is the name of the agent.
``buffer_flush.py`` stores the messages.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, func, select

from nexus_tasks.buffer import Entry
from nexus_tasks.errors import InvalidInput
from nexus_tasks.services.buffer_entries import id_of
from nexus_tasks.services.transcript_messages import message_of
from nexus_tasks.storage.engine import Transaction
from nexus_tasks.storage.models import Memory
from nexus_tasks.transcripts import position
from nexus_tasks.transcripts.position import Position
from nexus_tasks.types import Message, Role

log = logging.getLogger(__name__)

# An event waits this many seconds for its message in the transcript. Then a message made from the event is stored.
PATIENCE = 3_600.0
_COMPARED = 10_000  # the most characters of a prompt that are compared with those of a stored message
_SLACK = timedelta(minutes=5)  # a prompt's line in the transcript may be this much older than the prompt's event


@dataclass
class Turn:
    """The new messages and events of one session, from the hook's entries in the buffer and from the transcripts."""

    messages: list[Message] = field(default_factory=list)  # new messages of the transcripts, each with an id
    # Each event, and the message that is stored when the transcript lacks the event's message.
    standing_in: list[tuple[Entry, Message]] = field(default_factory=list)
    # Path of a transcript → the position up to which it was read. The positions are saved after the commit.
    positions: dict[str, Position] = field(default_factory=dict)
    ended: bool = False
    over_at: float = 0.0  # Unix time in seconds of the last event that ended a turn of the agent


def read(folder: str, namespace: str, start_id: str, entries: Sequence[Entry]) -> Turn:
    """Read the transcripts that ``entries`` name.

    Returns the new messages of these transcripts, and the events in ``entries``.

    Args:
        folder: the folder with the saved positions of transcripts.
        namespace: the namespace that gets the messages.
        start_id: the random id of the session's folder in the buffer. It becomes a part of the ids of messages that
            are made from events.
    """
    turn, paths, answers = Turn(), dict[str, str](), list[tuple[Entry, Message]]()
    for entry in entries:
        kept = entry.payload if isinstance(entry.payload, dict) else {}
        name = kept.get("event")
        named = (kept.get("transcript_path"), kept.get("agent_transcript_path"))
        if entry.context_type in position.READERS:
            paths.update(dict.fromkeys((path for path in named if path and isinstance(path, str)), entry.context_type))
        if name in ("Stop", "SessionEnd"):
            turn.over_at = max(turn.over_at, entry.time)
        turn.ended = name == "SessionEnd" or (turn.ended and name not in ("UserPromptSubmit", "PostToolUse"))
        try:
            made = _standing_in(start_id, entry, kept)
        except InvalidInput:
            raise  # it says which limit the entry exceeds
        except (AttributeError, TypeError, ValueError):
            raise InvalidInput("The entry is not as the hook writes it.") from None
        if made:
            (answers if made.role == "assistant" else turn.standing_in).append((entry, made))
    for path, agent in paths.items():
        _read_transcript(agent, folder, namespace, os.path.expanduser(path), turn)
    if not turn.positions:  # a transcript has the answers
        turn.standing_in = sorted([*turn.standing_in, *answers], key=lambda one: one[0].entry_seq)
    return turn


def _read_transcript(agent: str, folder: str, namespace: str, path: str, turn: Turn) -> None:
    try:
        news = position.read_on(agent, path, position.load(folder, path, namespace))
    except (OSError, ValueError) as error:  # a ValueError: the path has a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        log.warning("The transcript %r cannot be read; the hook's events are stored instead: %s", path, reason)
        return
    except Exception:  # a transcript that no reader foresaw must not keep the buffer's other entries from storage
        log.exception("The transcript %r cannot be read; the hook's events are stored instead.", path)
        return
    turn.messages += [made for one in news.messages if (made := _message(one))]
    turn.positions[path] = news.position


def _message(fields: dict[str, Any]) -> Message | None:
    try:
        return message_of(fields)
    except (InvalidInput, ValueError, TypeError) as error:
        log.warning("A line of a transcript is not a message: %s", error)
        return None


def _standing_in(start_id: str, entry: Entry, kept: dict[str, Any]) -> Message | None:
    call = kept.get("call") or {}
    role: Role = "user" if "prompt" in kept else "tool" if call else "assistant"
    said = str(kept.get("prompt") or kept.get("answer") or "")
    content = f"{call.get('name')}: {kept.get('result') or '(no output)'}" if role == "tool" else said
    if not content.strip():
        return None
    return message_of(
        {
            "role": role,
            "author": str(call.get("name") or "tool")[:200] if role == "tool" else None,
            "content": content,
            "occurred_at": datetime.fromtimestamp(entry.time, UTC),
            "tool_calls": (call,) if call else (),
            "id": _id(start_id, entry, role, content),
        }
    )


def _id(start_id: str, entry: Entry, role: Role, content: str) -> str:
    """The id of a message that is made from an event.

    Cursor runs the hook twice for an event when both the user's settings and those of the project have the hook. Then
    both messages get one id, and the second one is a repeat. The id of the turn is random, so that nobody can guess an
    erased text and compare the hash.
    """
    turn, call_id = entry.payload.get("turn"), (entry.payload.get("call") or {}).get("id")
    if not turn or (role == "tool" and not call_id):
        return id_of(start_id, entry)
    return f"event:{sha256(json.dumps([turn, role, call_id, content]).encode()).hexdigest()[:32]}"


def settle(
    tx: Transaction, session_id: int | None, turn: Turn, patience: float | None = None
) -> tuple[list[Message], set[int]]:
    """Decide which events are stored as messages. Call it after this transaction has stored the transcripts' messages.

    An event waits at most ``patience`` seconds for its message in the transcript. ``None`` means PATIENCE. An event
    that is further in the future does not wait: the clock was ahead when it was written.

    Returns:
        The messages of the events to store, and the ``entry_seq`` of the events that still wait. Events whose message
        is stored already are left out.
    """
    lacking, waiting = list[Message](), set[int]()
    patience = PATIENCE if patience is None else patience
    for entry, message in turn.standing_in:
        read = entry.context_type in position.READERS and message.role != "assistant"
        if read and session_id is not None and _covered(tx, session_id, message):
            continue
        if not read or entry.time <= turn.over_at or abs(time.time() - entry.time) > patience:
            lacking.append(message)
        else:
            waiting.add(entry.entry_seq)
    return lacking, waiting


def _covered(tx: Transaction, session_id: int, message: Message) -> bool:
    query = select(Memory.id).where(Memory.session_id == session_id, Memory.level == "raw")
    if message.role == "user":
        assert message.occurred_at is not None
        # Of a message from the future, `claimed_at` is the time that its line has, by the clock of the event.
        written_at = func.coalesce(Memory.claimed_at, Memory.occurred_at)
        query = query.where(
            Memory.role == "user",
            _has_prompt(message.content.strip()),
            written_at >= message.occurred_at - _SLACK,
        )
    else:
        call_id = message.tool_calls[0].get("id")
        query = query.where(Memory.tool_calls.contains([{"id": call_id}] if call_id else list(message.tool_calls)))
    return tx.scalar(query.limit(1)) is not None


def _has_prompt(prompt: str) -> ColumnElement[bool]:
    """Whether a message of the transcript has an event's prompt as whole lines. Images may stand beside the prompt.

    The hook cuts the middle out of a long prompt. So only the beginning of a long prompt is compared.
    """
    if len(prompt) > _COMPARED:
        return func.strpos(Memory.content, prompt[:_COMPARED]) > 0
    return func.strpos("\n" + Memory.content + "\n", f"\n{prompt}\n") > 0


def note(folder: str, namespace: str, turn: Turn) -> None:
    """Save the position up to which each transcript is stored in the namespace."""
    for path, reached in turn.positions.items():
        try:
            position.save(folder, path, namespace, reached)
        except OSError as error:
            log.warning("The position in transcript %s could not be saved: %s", path, error.strerror)
