"""Turn entries of the session buffer into calls of ``ingest``.

The session buffer is a folder of files that keep messages on this machine while Postgres is away. Each entry has a
context type and a payload. The context type names the form of the payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from time import time
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nexus_tasks import limits
from nexus_tasks.buffer import Entry
from nexus_tasks.errors import InvalidInput, faults
from nexus_tasks.types import Message, check_count, check_message, check_name

# The context types of entries.
MESSAGE = "message"  # the payload is one message: an object with the fields of `Message`, or only the message's content
INGEST = "ingest"  # the payload is a whole call of `ingest`: an object with messages, observers, observe and end
END = "end"  # the session has ended; the payload is ignored
KNOWN = frozenset((MESSAGE, INGEST, END))

_MESSAGE = TypeAdapter(Message)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of ``ingest``.

    ``observers=None`` means the namespace's observers. ``time`` is the time of the buffer's entry, in Unix seconds. A
    message without a time of its own gets this time. ``observe=None`` leaves the session's setting unchanged.
    """

    messages: tuple[Message, ...]
    observers: tuple[str, ...] | None
    end: bool
    time: float
    observe: bool | None = None


def told(messages: Sequence[Message], *, observe: bool | None) -> Call:
    """Make a call that stores ``messages``. Each message already has an id and a time."""
    return Call(messages=tuple(messages), observers=None, end=False, time=time(), observe=observe)


def calls(start_id: str, entries: Iterable[Entry]) -> list[Call]:
    """The calls of ``ingest`` for ``entries``, in the order of ``entries``.

    Consecutive entries of the type ``message`` become one call. The type of each entry is in :data:`KNOWN`.

    Raises:
        InvalidInput: the payload of an entry does not fit its context type.
    """
    found = list[Call]()
    for plain, some in groupby(entries, lambda entry: entry.context_type == MESSAGE):
        made = [_call(start_id, entry) for entry in some]
        if plain:  # one call can store all these messages, because each message has an id and a time
            made = [replace(made[-1], messages=tuple(message for call in made for message in call.messages))]
        found += made
    return found


def _call(start_id: str, entry: Entry) -> Call:
    kind, payload = entry.context_type, entry.payload
    if kind == END:
        return Call(messages=(), observers=None, end=True, time=entry.time)
    if kind == INGEST and isinstance(payload, dict):
        messages, observers, observe = payload.get("messages"), payload.get("observers"), payload.get("observe")
        _check("messages", messages, list, "a list")
        _check("observers", observers, list, "a list")
        _check("observe", observe, bool, "true or false")
        messages = messages or []
        check_count("messages", messages, limits.MESSAGES_PER_CALL)
        check_count("observers", observers or (), limits.OBSERVERS_PER_CALL)
        return Call(
            messages=tuple(_message(one) for one in messages),
            observers=None if observers is None else tuple(check_name("observers", name) for name in observers),
            end=bool(payload.get("end")),
            time=entry.time,
            observe=observe,
        )
    if kind == MESSAGE:
        fields = {"content": payload} if isinstance(payload, str) else payload
        said = _message(fields)
        return Call(messages=(_identified(said, start_id, entry),), observers=None, end=False, time=entry.time)
    raise InvalidInput(f"An entry of type {kind!r} cannot be stored: its payload is not an object.")


def _check(name: str, value: object, kind: type, what: str) -> None:
    """Check a field of an entry, which any program may have written. A missing field and null are fine."""
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(f"{name} must be {what}, not {type(value).__name__}.")


def released(entry: Entry, name: str) -> Any:
    """The payload with which an entry from quarantine is appended again.

    Its messages keep the entry's time, and a message of the type ``message`` gets an id made from ``name``, the name of
    the file in quarantine. So an entry that is released twice, because of a crash, is stored once.
    """
    when, payload = datetime.fromtimestamp(entry.time, UTC).isoformat(), entry.payload
    if entry.context_type == MESSAGE:
        fields = {"content": payload} if isinstance(payload, str) else payload
        return (
            {"id": f"released:{name}", "occurred_at": when} | _filled(fields) if isinstance(fields, dict) else payload
        )
    if entry.context_type == INGEST and isinstance(payload, dict) and isinstance(payload.get("messages"), list):
        said = payload["messages"]
        return payload | {"messages": [{"occurred_at": when} | _filled(m) if isinstance(m, dict) else m for m in said]}
    return payload


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _identified(said: Message, start_id: str, entry: Entry) -> Message:
    """The message with an id and a time. A missing id or time is made from the entry.

    Messages with equal texts in two entries get two ids.
    """
    return replace(
        said,
        id=said.id or id_of(start_id, entry),
        occurred_at=said.occurred_at or datetime.fromtimestamp(entry.time, UTC),
    )


def id_of(start_id: str, entry: Entry) -> str:
    """The id of the message that an entry holds.

    Two copies of a home write different entries with the same number. So the id is made from the number only where the
    entry has no id of its own.

    Args:
        start_id: the random id of the session's folder in the buffer.
    """
    return f"entry:{start_id}:{entry.id or entry.entry_seq}"


def _message(fields: object) -> Message:
    if not isinstance(fields, Mapping):
        raise InvalidInput(f"A message is an object or a text, not {type(fields).__name__}.")
    try:
        made = _MESSAGE.validate_python(dict(fields))
        check_message(made)
        return made
    except (TypeError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"This is not a message: {error}.") from None
    except ValidationError as error:
        raise InvalidInput(f"This is not a message: {faults(error.errors(), root='it')}.") from None


def plain(value: object) -> Any:
    """A copy of ``value`` with only JSON types. Each time becomes a text in ISO 8601."""
    return json.loads(json.dumps(value, default=_as_json))


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise InvalidInput(f"tool_calls hold a {type(value).__name__}, which JSON cannot represent.")
