"""Import messages from JSONL. Each line is a JSON object with one message.

The keys are ``session``, ``role``, ``author``, ``content``, ``occurred_at``, ``id`` and ``tool_calls``. Only
``content`` is required. A line with ``tool_calls`` needs no ``content``. ``null`` counts as missing. Unknown keys and
blank lines are ignored. Lines of different sessions may alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from nexus_tasks.errors import InvalidInput
from nexus_tasks.integrations.importers.conversation import (
    Conversation,
    ConversationBuilder,
    field,
    file_error,
    kind_of,
    parsed,
)
from nexus_tasks.text import shorten
from nexus_tasks.types import Message, Role, check_name, to_utc

# The years 1973 to 2286, in seconds since 1970. A time of these years in milliseconds is larger than both bounds.
_FIRST, _LAST = 10**8, 10**10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse(path: Path, text: str, namespace: str, default_session: str) -> list[Conversation]:
    """Read the conversations in ``text``. Every line is checked.

    Raises:
        InvalidInput: a line is not a message. The error names the line and the fault.
    """
    sessions = ConversationBuilder()
    # splitlines() would also split at U+2028, which a JSON text may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                record = _record(line)
                session = field(record, "session", str)
                key = default_session if session is None else session
                sessions.add(namespace, check_name("session", key), _message(record))
            except InvalidInput as error:
                raise file_error(path, f"line {number}", error.message) from None
    return sessions.conversations()


def _record(line: str) -> dict[str, Any]:
    try:
        record = parsed(line)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidInput(f"a message must be an object, not {kind_of(record)}")
    return record


def _message(record: Mapping[str, Any]) -> Message:
    content, role, tool_calls = field(record, "content", str), field(record, "role", str), _tool_calls(record)
    if content is None and not tool_calls:
        raise InvalidInput('"content" is missing')
    return Message(
        content=content or "",
        role=cast("Role", "user" if role is None else role),  # Message checks the role
        author=field(record, "author", str),
        occurred_at=_time(record.get("occurred_at")),
        tool_calls=tool_calls,
        id=field(record, "id", str),
    )


def _tool_calls(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    value = field(record, "tool_calls", list) or []
    if not all(isinstance(call, dict) for call in value):
        raise InvalidInput('"tool_calls" must be a list of objects')
    return tuple(value)


def _time(value: object) -> datetime | None:
    """Parse an ISO 8601 time, or a number of seconds or milliseconds since 1970. A time without an offset is in UTC."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if _FIRST <= value < _LAST:
            return _EPOCH + timedelta(seconds=value)
        if _FIRST * 1000 <= value < _LAST * 1000:
            return _EPOCH + timedelta(milliseconds=value)
        raise InvalidInput(f'"occurred_at" {value} is neither seconds nor milliseconds since 1970')
    if not isinstance(value, str):
        raise InvalidInput(f'"occurred_at" must be a time, not {kind_of(value)}')
    try:
        return to_utc(datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f'"occurred_at" {shorten(value, 40)!r} is not an ISO 8601 time such as 2026-03-09T14:30Z'
        ) from None
