"""An item of LangGraph's store, as a message of a session.

The session's key is made from the item's namespace: ``("users", "ann")`` is ``langgraph/users/ann/``. The message's
``data`` has the value as it was given, its text is what searches read, and its id is made from the item's key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from langgraph.store.base import Item, PutOp, SearchItem, get_text_at_path

from nexus_tasks.types import MemoryInfo, Message, SaidMessage

_READ = 100_000  # the most characters of a value that searches read
_LONGEST_ID = 200  # characters of an item's key, quoted; the id of a longer key is its hash
_KEY = "key:"  # before a quoted key in an id


def session_of(root: str, namespace: Sequence[str]) -> str:
    """The key of the session that has the items of ``namespace``, and the beginning of those of namespaces below it."""
    return "".join(f"{label}/" for label in (root, *(quote(label, safe="") for label in namespace)))


def namespace_of(root: str, session_key: str) -> tuple[str, ...]:
    """The namespace whose items the session has."""
    return tuple(unquote(label) for label in session_key.removeprefix(f"{root}/").split("/")[:-1])


def id_of(key: str) -> str:
    """The id of the message of an item."""
    quoted = quote(key, safe="")
    return f"{_KEY}{quoted}" if len(quoted) <= _LONGEST_ID else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _key_of(kept: SaidMessage | MemoryInfo, data: Mapping[str, Any]) -> str | None:
    """The key of an item: from the id of its message, or from the data when the id has only the hash of a long key.

    Under the name ``key``, the data may have a placeholder: a random text such as a UUID counts as a secret there.
    """
    if kept.external_id is not None and kept.external_id.startswith(_KEY):
        return unquote(kept.external_id.removeprefix(_KEY))
    found = data.get("id", data.get("key"))
    return found if isinstance(found, str) else None


def message_of(put: PutOp, fields: Sequence[str], created_at: str | None) -> Message:
    """The message that keeps an item, as it is put now."""
    now = datetime.now(UTC)
    value = dict(put.value or {})
    id = id_of(put.key)
    long_key = {} if id.startswith(_KEY) else {"id": put.key}
    data = {"key": put.key, **long_key, "value": value, "created_at": created_at or now.isoformat()}
    kept = Message(
        role="tool",
        author="langgraph",
        content="",
        data={**data, "updated_at": now.isoformat()},
        id=id,
        occurred_at=now,
    )  # the value is JSON, because it is accepted
    if put.index is False:
        return kept
    return replace(kept, content=_text(value, fields if put.index is None else put.index)[:_READ])


def _text(value: Mapping[str, Any], fields: Sequence[str]) -> str:
    """What searches read: the texts at the fields. The whole of a value with one text is that text."""
    if list(fields) == ["$"] and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return "\n".join(text for field in fields for text in get_text_at_path(dict(value), field))


def item_of(root: str, session_key: str, kept: SaidMessage | MemoryInfo) -> Item | None:
    """The item that a message keeps; ``None`` for a message that somebody else has put into the session."""
    if kept.data is None or "value" not in kept.data:
        return None
    data = json.loads(json.dumps(kept.data))  # a copy that the caller may change
    key = _key_of(kept, data)
    if key is None:
        return None
    return Item(
        value=data["value"],
        key=key,
        namespace=namespace_of(root, session_key),
        created_at=data["created_at"],
        updated_at=data["updated_at"],
    )


def hit_of(item: Item, score: float | None = None) -> SearchItem:
    """The item as a result of a search."""
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at, score)
