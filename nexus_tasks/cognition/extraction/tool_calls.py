"""Find tool calls in messages: calls without an answer, and calls with which the agent wrote memory itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nexus_tasks.storage.models import Memory
from nexus_tasks.text import content_words
from nexus_tasks.transcripts.codex import patched_files

_WRITERS = frozenset(
    ("Write", "Edit", "MultiEdit", "FileWrite", "FileEdit", "write_file", "edit_file", "create_file", "memory")
)
_HIDDEN_FOLDER = re.compile(r"(?:^|[/\\])\.[\w.-]+[/\\]")
_MEMORY_FOLDER = re.compile(r"[/\\]memor(?:y|ies)[/\\]")
# A text file in such a folder is memory. Another file, such as src/memory/cache.py, is a part of the project.
_NOTES_FOLDER = re.compile(r"(?:^|[/\\])memor(?:y|ies)[/\\]")
_NOTES = (".md", ".txt")
_MEMORY_FILE = re.compile(r"(?:^|[/\\])(?:MEMORY|CLAUDE|CLAUDE\.local|AGENTS)\.md$")
_REMEMBER = re.compile(r"(?:^|__|:)remember$")  # the tool of `nexus mcp`, with or without the name of its server
_COMMAND = re.compile(r"(?:^|[\s;&|(])nexus\s+remember\b")
# The files to which a shell command writes: "> FILE", ">> FILE" and "tee FILE …".
_WORD = r"""(?:"[^"\n]{1,1000}"|'[^'\n]{1,1000}'|[^\s;&|<>()"']{1,1000})"""
_REDIRECT = re.compile(rf">{{1,2}}\|?[ \t]{{0,9}}({_WORD})")
_TEE = re.compile(r"\btee\b([^\n;&|<>]{1,2000})")
# A prompt that asks the agent to save something.
_ASKS = re.compile(
    r"\b(?:remember|memori[sz]e|keep in mind|don['’]?t forget|note (?:that|this|down|it)|make a note|take note|write"
    r" (?:that|this|it) down|save (?:that|this|it)|for (?:the future|next time)|to (?:your )?memory"
    r"|(?:CLAUDE|AGENTS|MEMORY)\.md)\b",
    re.IGNORECASE,
)
_COVERED = 0.5  # the share of a prompt's words in what the agent saved, from which on it is saved (chosen by hand)
_DEPTH = 8  # how deep the input of a call is read
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
    """Ids of the messages whose content the agent saved itself.

    These are the messages with a tool call that writes memory, the messages that answer these calls, and the user's
    last message before such a call if it is saved too. It counts as saved when it asks the agent to remember
    something, or when at least half of its words are in what the agent wrote.
    """
    found, ids = set[int](), set[str]()
    prompt: Memory | None = None
    for message in messages:
        writing = [call for call in _calls(message) if _writes_memory(call)]
        ids.update(call["id"] for call in writing if isinstance(call.get("id"), str))
        if writing or not ids.isdisjoint(_answered_ids(message)):
            found.add(message.id)
        if writing and prompt is not None and _is_saved(prompt.content, writing):
            found.add(prompt.id)
        if message.role == "user":
            prompt = message
    return found


def _is_saved(prompt: str, writing: Sequence[dict[str, Any]]) -> bool:
    if _ASKS.search(prompt):
        return True
    said = set(content_words(prompt))
    saved = {word for call in writing for text in _texts(call) for word in content_words(text)}
    return bool(said) and len(said & saved) >= _COVERED * len(said)


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)) and depth < _DEPTH:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, depth + 1)


def _writes_memory(call: dict[str, Any]) -> bool:
    name = call.get("name") or call.get("tool") or ""
    function = call.get("function")
    if not name and isinstance(function, dict):  # OpenAI's format nests the name.
        name, call = function.get("name") or "", function
    name = name if isinstance(name, str) else ""  # a model or a program may give anything
    given = _object(call.get("input", call.get("arguments")))
    if _REMEMBER.search(name):
        return True
    if name == "apply_patch":
        return any(_is_memory(path) for text in _texts(given) for path in patched_files(text))
    if not isinstance(given, dict):
        return name in _WRITERS and isinstance(given, str) and _names_memory(given)
    path = given.get("file_path") or given.get("path") or ""
    if name in _WRITERS:
        return given.get("command") != "view" and _is_memory(str(path))
    command = given.get("command") or given.get("cmd") or ""
    command = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    return bool(_COMMAND.search(command)) or any(map(_is_memory, _written_files(command)))


def _object(given: Any) -> Any:
    """The input of a call. OpenAI's format writes it as a text of JSON."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
    return given


def _written_files(command: str) -> Iterator[str]:
    for match in _REDIRECT.finditer(command):
        yield match[1].strip("\"'")
    for match in _TEE.finditer(command):
        yield from (word.strip("\"'") for word in match[1].split())


def _is_memory(path: str) -> bool:
    """Whether ``path`` is a file of an agent's memory.

    Such a file is ``MEMORY.md``, ``CLAUDE.md`` or ``AGENTS.md``, a Markdown or text file in a folder ``memory`` or
    ``memories``, or any file in such a folder below a hidden folder.
    """
    return _names_memory(path) or (path.endswith(_NOTES) and bool(_NOTES_FOLDER.search(path)))


def _names_memory(text: str) -> bool:
    """Whether a line of ``text`` has a path such as ``~/.claude/projects/x/memory/deploys``, or ends in MEMORY.md.

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
