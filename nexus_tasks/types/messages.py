"""The message that a caller stores, and the receipt of storing messages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nexus_tasks import limits
from nexus_tasks.errors import InvalidInput
from nexus_tasks.event_time import check_zone, zone_of
from nexus_tasks.types.document import Document
from nexus_tasks.types.names import ROLES, Role, check_name, check_time, clean_text

MAX_CONTENT = limits.MESSAGE_CHARACTERS
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # behind an even number of backslashes


_SPLIT = "Split the text into several messages, or leave out what nobody will ask for; nothing was stored."


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation.

    A message that its session has already is a repeat, and is not stored again. Give each message an ``id`` or an
    ``occurred_at``. Without them, a message is a repeat when an earlier call stored the same text by the same author.
    """

    content: str  # at most 1,000,000 characters; may be empty only when there are tool calls or data
    role: Role = "user"
    author: str | None = None  # default: the role
    occurred_at: datetime | None = None  # default: the time of storing; naive means UTC
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # the tool calls in the form that the caller's model gave them
    # The speaker's time zone, such as "Europe/Lisbon" or "+05:30": "yesterday" is a day there. Default: the offset of
    # `occurred_at` when it has one other than UTC, else the time zone of the namespace.
    time_zone: str | None = None
    id: str | None = None  # the producer's own idempotency key, unique per (namespace, session)
    # From this time on, the message and what was derived from it alone count as superseded. Naive means UTC.
    expires_at: datetime | None = None
    erase_expired: bool = False  # erase them within an hour after that time
    # JSON that belongs to the message. It comes back with the message as it was given, in the same order, apart from
    # secrets, which are replaced. No model reads it, and no search finds it.
    data: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise InvalidInput(f"content must be text, not {type(self.content).__name__}.")
        object.__setattr__(self, "content", clean_text(self.content))
        if not self.content.strip() and not self.tool_calls and self.data is None:
            raise InvalidInput("content is empty, and there are no tool_calls and no data either.")
        if len(self.content) > MAX_CONTENT:
            raise InvalidInput(
                f"content has {len(self.content):,} characters; at most {MAX_CONTENT:,} are stored.", remedy=_SPLIT
            )
        if self.role not in ROLES:
            raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {self.role!r}.")
        if self.author is not None:
            object.__setattr__(self, "author", check_name("author", self.author))
        if self.id is not None:
            object.__setattr__(self, "id", check_name("id", self.id))
        if self.occurred_at is not None:
            check_time("occurred_at", self.occurred_at)
        if self.time_zone is None and self.occurred_at is not None:
            object.__setattr__(self, "time_zone", zone_of(self.occurred_at))
        elif self.time_zone is not None:
            check_zone("time_zone", self.time_zone)
        if self.expires_at is not None:
            check_time("expires_at", self.expires_at)
        elif self.erase_expired:
            raise InvalidInput("erase_expired needs expires_at.")
        object.__setattr__(self, "tool_calls", _tool_calls(self.tool_calls))
        if self.data is not None:
            object.__setattr__(self, "data", _data(self.data))


def check_message(message: Message) -> None:
    """Check that a message is not too long, and that its tool calls and data have not too many values.

    Raises:
        InvalidInput: one of them is beyond its limit.
    """
    check_size(message)
    _check_values("tool_calls", message.tool_calls)
    _check_values("data", [message.data or {}])


def check_size(message: Message) -> None:
    """Check that the content, the tool calls and the data of a message are not too long together.

    Raises:
        InvalidInput: they are.
    """
    size = len(message.content) + json_size(message)
    if size > MAX_CONTENT:
        raise InvalidInput(
            f"content, tool_calls and data have {size:,} characters together; at most {MAX_CONTENT:,} are stored.",
            remedy=_SPLIT,
        )


def json_size(message: Message) -> int:
    """The number of characters of a message's tool calls and data as JSON; 0 without them."""
    calls = [dict(call) for call in message.tool_calls]
    data = None if message.data is None else dict(message.data)
    return sum(len(json.dumps(each, ensure_ascii=False)) for each in (calls or None, data) if each is not None)


def _tool_calls(given: object) -> tuple[Mapping[str, Any], ...]:
    """Check that tool calls are objects that Postgres can store as JSON, and return them."""
    if not isinstance(given, list | tuple) or not all(isinstance(call, Mapping) for call in given):
        raise InvalidInput("tool_calls must be a list of mappings.")
    if given:
        _check_json("tool_calls", [dict(call) for call in given])
    return tuple(given)


def _data(given: object) -> Mapping[str, Any]:
    """Check that ``given`` is an object that JSON gives back unchanged, and return it."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"data must be a mapping, not {type(given).__name__}.")
    data = dict(given)
    if json.loads(_check_json("data", data)) != data:
        raise InvalidInput("data would not come back as it was given: its keys must be text, and its lists no tuples.")
    return given


def _check_json(field: str, value: Any) -> str:
    """``value`` as JSON that Postgres can store."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field} hold half a surrogate pair, which is no character.") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{field} are not JSON: {error}.") from None
    if _NUL_IN_JSON.search(text):
        raise InvalidInput(f"{field} hold a NUL character, which Postgres cannot store.")
    return text


def _check_values(field: str, given: Sequence[Any]) -> None:
    """Check that a JSON value has not too many values, because each text among them is scrubbed alone."""
    values, left = 0, list[Any]([given])
    while left:
        one = left.pop()
        inner = one.values() if isinstance(one, Mapping) else one
        values += len(inner)
        left += (each for each in inner if isinstance(each, Mapping | list | tuple))
        if values > limits.TOOL_CALL_VALUES:
            raise InvalidInput(
                f"{field} have more than {limits.TOOL_CALL_VALUES:,} values.",
                remedy="Leave out what nobody will ask for, or store it as one text; nothing was stored.",
            )


@dataclass(frozen=True, kw_only=True)
class Receipt(Document):
    """The result of storing messages. ``messages = stored + duplicates + buffered``."""

    namespaces: tuple[str, ...]
    session_keys: tuple[str, ...]
    messages: int  # number of messages that the caller gave
    stored: int  # number of messages that are new in Postgres
    duplicates: int  # number of messages that were stored by an earlier call
    enqueued: int  # number of jobs that were queued; 0 while Redis does not answer, and a worker queues the jobs later
    buffered: int = 0  # number of messages that the session buffer keeps, because Postgres does not answer
    # The number of stored messages whose facts are derived. Only `nexus ingest --wait` sets this field.
    derived: int | None = None

    def _left_out(self) -> Collection[str]:
        return () if self.derived is not None else ("derived",)
