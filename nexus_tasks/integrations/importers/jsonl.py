"""Import messages from JSONL. Each line is a JSON object with one message.

The keys are ``session``, ``role``, ``author``, ``content``, ``occurred_at``, ``id`` and ``tool_calls``. Only
``content`` is required. A line with ``tool_calls`` needs no ``content``. ``null`` counts as missing. Unknown keys and
blank lines are ignored. Lines of different sessions may alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from nexus_tasks.integrations.importers.source import Source
from nexus_tasks.integrations.importers.times import time_field
from nexus_tasks.types import Message, Role, check_name


def parse(source: Source, namespace: str, default_session: str) -> list[Conversation]:
    """Read the conversations of a file. Every line is checked.

    Raises:
        InvalidInput: a line is not a message. The error names the line and the fault.
    """
    sessions = ConversationBuilder()
    for number, line in source.lines():
        try:
            record = _record(line)
            session = field(record, "session", str)
            key = default_session if session is None else session
            sessions.add(namespace, check_name("session", key), _message(record))
        except InvalidInput as error:
            raise file_error(source.path, f"line {number}", error.message) from None
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
        occurred_at=time_field(record, "occurred_at"),
        tool_calls=tool_calls,
        id=field(record, "id", str),
    )


def _tool_calls(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    value = field(record, "tool_calls", list) or []
    if not all(isinstance(call, dict) for call in value):
        raise InvalidInput('"tool_calls" must be a list of objects')
    return tuple(value)
