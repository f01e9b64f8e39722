"""The type ``Conversation`` that importers return, and the checks and errors that all importers use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.types import Message, check_count, check_message

T = TypeVar("T")
_KINDS: dict[type, str] = {
    **{type(None): "null", bool: "a boolean", int: "a number", float: "a number"},
    **{str: "text", list: "a list", dict: "an object"},
}


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The messages of one session, in order."""

    namespace: str
    session_key: str
    messages: tuple[Message, ...]


class ConversationBuilder:
    """Collects messages by session.

    The sessions are in the order of their first messages. The messages of a session are in the order of the calls.
    """

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], list[Message]] = {}
        self._by_id: dict[tuple[str, str, str], Message] = {}

    def add(self, namespace: str, session_key: str, message: Message) -> None:
        """Put ``message`` at the end of the session ``session_key``.

        A message with an id may be added twice, for example from a file that joins several exports. The database then
        stores the message once.

        Raises:
            InvalidInput: the message is too long, the session has too many messages, or the session has a different
                message with the same id.
        """
        check_message(message)
        if message.id is not None:
            first = self._by_id.setdefault((namespace, session_key, message.id), message)
            if (first.content, first.role, first.author) != (message.content, message.role, message.author):
                raise InvalidInput(f"another message of session {session_key!r} has the id {message.id!r} already")
        messages = self._sessions.setdefault((namespace, session_key), [])
        messages.append(message)
        check_count(f"session {session_key!r}", messages, limits.MESSAGES_PER_CALL)

    def conversations(self) -> list[Conversation]:
        """The collected conversations."""
        return [
            Conversation(namespace=namespace, session_key=session_key, messages=tuple(messages))
            for (namespace, session_key), messages in self._sessions.items()
        ]


def by_time(path: Path, namespace: str, found: Iterable[tuple[str, str, Message]]) -> list[Conversation]:
    """The conversations of messages, each with its place for errors and its session, the oldest message first.

    Raises:
        InvalidInput: a message does not fit the others of its session. The error names its place.
    """
    sessions, never = ConversationBuilder(), datetime.min.replace(tzinfo=UTC)
    for where, session_key, message in sorted(found, key=lambda one: one[2].occurred_at or never):
        try:
            sessions.add(namespace, session_key, message)
        except InvalidInput as error:
            raise file_error(path, where, error.message) from None
    return sessions.conversations()


def file_error(path: Path, where: str, why: str) -> InvalidInput:
    """The error for a fault in a file. ``where`` is the line or JSON path of the fault, or empty."""
    place = f"{path}, {where}" if where else str(path)
    return InvalidInput(
        f"{place}: {why.rstrip('.')}.", remedy="Correct the file and ingest it again; nothing was stored."
    )


def decoded(path: Path, data: bytes, *, first_line: int = 1) -> str:
    """Decode ``data`` as UTF-8. A byte order mark at the beginning of a file is removed.

    ``first_line`` is the number of the line in which ``data`` begins.

    Raises:
        InvalidInput: ``data`` is not UTF-8. The message names the line.
    """
    try:
        return data.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise file_error(path, f"line {line}", f"not UTF-8 (byte 0x{data[error.start]:02x})") from None


def parsed(text: str) -> object:
    """Parse ``text`` as JSON. NaN and Infinity are errors.

    Raises:
        ValueError: ``text`` is not JSON. The message says why.
    """

    def refuse(constant: str) -> NoReturn:
        # Python accepts NaN and Infinity in JSON. Postgres does not accept them.
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def kind_of(value: object) -> str:
    """The name that error messages use for the type of a JSON value."""
    return _KINDS[type(value)]


def field(record: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """The value ``record[key]``, which must have the type ``kind``. ``None`` when the value is null or missing.

    Raises:
        InvalidInput: the value has another type, or is a text with a lone surrogate. Postgres refuses lone surrogates.
    """
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, kind):
        raise InvalidInput(f'"{key}" must be {_KINDS[kind]}, not {kind_of(value)}')
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput(f'"{key}" has half a character (a lone surrogate)')
    return value


def required_field(record: object, key: str, kind: type[T]) -> T:
    """The value ``record[key]``, which must exist and have the type ``kind``.

    Raises:
        InvalidInput: ``record`` is not an object, or the value is null, missing or of another type.
    """
    if not isinstance(record, dict):
        raise InvalidInput(f"must be an object, not {kind_of(record)}")
    value = field(record, key, kind)
    if value is None:
        raise InvalidInput(f'"{key}" is missing')
    return value
