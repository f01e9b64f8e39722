"""Make the message of a transcript's line or of a hook's event.

What cannot be stored of it does not cost the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nexus_tasks.errors import InvalidInput
from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.types import MAX_CONTENT, Message, check_message, check_time, clean_text

_LONGEST = 100_000  # characters that are kept of a text which is too long to be stored, as of a hook's prompt
_NAMES = ("name", "id", "result_of", "error")  # what is kept of a tool call whose input cannot be stored
_LONGEST_NAME = 200  # characters
_ROOM = 700_000  # characters of the text beside tool calls that had to be shortened
_MOST_CALLS = 300


def message_of(fields: Mapping[str, Any]) -> Message:
    """The message with these fields of :class:`Message`. Its ``occurred_at`` may be a text.

    - A time that cannot be read is left out.
    - The middle of a text that is longer than a message may be is left out.
    - When a tool call cannot be stored, its input is left out. A program may give a tool a NUL character, half of a
      surrogate pair or thousands of values.

    Raises:
        InvalidInput, TypeError: the fields are not those of a message.
    """
    content = fields["content"]
    if isinstance(content, str) and len(content) > MAX_CONTENT:
        content = excerpt(content, _LONGEST)
    given = {**fields, "content": content, "occurred_at": _time(fields.get("occurred_at"))}
    calls = tuple(fields.get("tool_calls") or ())
    try:
        return _checked(Message(**given | {"tool_calls": calls}))
    except InvalidInput:
        if not calls:
            raise
    named = tuple(map(_without_input, calls[:_MOST_CALLS]))
    return _checked(Message(**given | {"tool_calls": named, "content": content[:_ROOM]}))


def _checked(message: Message) -> Message:
    check_message(message)
    return message


def _time(given: Any) -> datetime | None:
    try:
        when: datetime | None = datetime.fromisoformat(given) if isinstance(given, str) else given
        if when is not None:
            check_time("occurred_at", when)
    except (ValueError, InvalidInput):
        return None
    return when


def _without_input(call: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: call[name] for name in _NAMES if isinstance(call.get(name), str | bool)}
    return {name: clean_text(one)[:_LONGEST_NAME] if isinstance(one, str) else one for name, one in kept.items()}
