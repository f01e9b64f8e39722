"""Find tool calls in messages: calls without an answer, and calls with which the agent wrote memory itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nexus_tasks.storage.models import Memory

_WRITERS = frozenset(("Write", "Edit", "MultiEdit", "FileWrite", "FileEdit"))
_HIDDEN_FOLDER = re.compile(r"(?:^|[/\\])\.[\w.-]+[/\\]")
_MEMORY_FOLDER = re.compile(r"[/\\]memor(?:y|ies)[/\\]")
_MEMORY_FILE = re.compile(r"(?:^|[/\\])MEMORY\.md$")
_REMEMBER = re.compile(r"(?:^|__)remember$")
_COMMAND = re.compile(r"(?:^|[\s;&|(])nexus\s+remember\b")
_ANSWERS = ("result_of", "tool_use_id", "tool_call_id")


def has_unanswered_calls(messages: Sequence[Memory]) -> bool:
    """Whether the last assistant message has tool calls that no later message answers."""
    position = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"), None)
    if position is None:
        return False
    open_ids, open_calls = set[str](), 0
    for call in _calls(messages[position]):
        if isinstance(call.get("id"), str):
            open_ids.add(call["id"])
        else:
            open_calls += 1
    for message in messages[position + 1 :]:
        answered = set(_answered_ids(message))
        open_ids -= answered
        open_calls -= message.role == "tool" and not answered
    return bool(open_ids) or open_calls > 0


def count_calls(messages: Iterable[Memory]) -> int:
    """The number of tool calls in ``messages``."""
    return sum(1 for message in messages if message.role == "assistant" for _ in _calls(message))


def memory_writing_messages(messages: Iterable[Memory]) -> set[int]:
    """Ids of the messages with a tool call that writes memory, and of the messages that answer these calls."""
    found, ids = set[int](), set[str]()
    for message in messages:
        writing = [call for call in _calls(message) if _writes_memory(call)]
        ids.update(call["id"] for call in writing if isinstance(call.get("id"), str))
        if writing or not ids.isdisjoint(_answered_ids(message)):
            found.add(message.id)
    return found


def _writes_memory(call: dict[str, Any]) -> bool:
    name = call.get("name") or call.get("tool") or ""
    function = call.get("function")
    if not name and isinstance(function, dict):  # OpenAI's format nests the name.
        name, call = function.get("name") or "", function
    given = call.get("input", call.get("arguments"))
    if _REMEMBER.search(str(name)):
        return True
    if not isinstance(given, dict):
        return name in _WRITERS and isinstance(given, str) and _names_memory(given)
    path = given.get("file_path") or given.get("path") or ""
    if name in _WRITERS:
        return _names_memory(str(path))
    return bool(_COMMAND.search(str(given.get("command") or "")))


def _names_memory(text: str) -> bool:
    """Whether a line of ``text`` has a path such as ``~/.claude/projects/x/memory/deploys.md``, or ends in MEMORY.md.

    Each line is read once. One regular expression would search for the folder ``memory`` behind each hidden folder.
    """
    end = -1
    for hidden in _HIDDEN_FOLDER.finditer(text):
        if hidden.start() >= end:
            end = text.find("\n", hidden.end()) + 1 or len(text)
            if _MEMORY_FOLDER.search(text, hidden.end() - 1, end):
                return True
    return bool(_MEMORY_FILE.search(text))


def _calls(message: Memory) -> Iterator[dict[str, Any]]:
    """The calls of a message. Answers to calls, which the field ``tool_calls`` also stores, are left out."""
    for call in message.tool_calls or ():
        if isinstance(call, dict) and not any(key in call for key in _ANSWERS):
            yield call


def _answered_ids(message: Memory) -> Iterator[str]:
    """Ids of the calls that a message answers. In a ``tool`` message, the hook repeats the call with its ``id``."""
    for call in message.tool_calls or ():
        if isinstance(call, dict):
            keys = (*_ANSWERS, "id") if message.role == "tool" else _ANSWERS
            yield from (call[key] for key in keys if isinstance(call.get(key), str))
