"""Read messages from the transcripts of Claude Code, which are JSONL files.

Prompts, answers, tool calls and tool results become messages. Placeholders replace the secrets in them. The agent
appends lines to a transcript, and sometimes rewrites the file. The id of a message comes from the ``uuid`` of its line.
Therefore a second reading of a line stores no second message, even after the file was rewritten. Unknown lines and
fields are skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.transcripts.scrubbing import scrub, scrub_value

Message = dict[str, Any]  # the fields of nexus_tasks.Message, with JSON types (`occurred_at` is a text)

SUBAGENT = "subagent"
# The most characters that are kept of a tool's result, and of each text in a tool's input. Chosen by hand.
_RESULT_CHARACTERS, _INPUT_CHARACTERS = 2_000, 1_000
_EDITS = frozenset(("Edit", "MultiEdit", "Write", "NotebookEdit", "FileEdit", "FileWrite"))
# Texts of the program in a user's message. A text that begins with one of them is left out.
_LOCAL = (
    "<local-command-stdout>",
    "<local-command-stderr>",
    "<local-command-caveat>",
    "<bash-stdout>",
    "<bash-stderr>",
    "<task-notification>",
    "Caveat: The messages below",
    "[Request interrupted by user",
)
# Notes of the program and of an editor, before or behind what the user says. They are left out.
_NOTES = ("system-reminder", "ide_opened_file", "ide_selection", "ide_diagnostics")


class Reader:
    """Turns lines of a transcript into messages.

    ``open_calls`` has the tool calls without a result. It maps the id of a call to the name of the tool.
    """

    def __init__(self, open_calls: dict[str, str] | None = None) -> None:
        self.open_calls = dict(open_calls or {})
        self.broken = 0  # number of lines that are not a JSON object
        self.session_id: str | None = None

    def messages(self, lines: Iterable[bytes]) -> Iterator[Message]:
        """The messages of ``lines``, in the order of the lines."""
        for line in lines:
            if line.strip():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    self.broken += 1
                    continue
                if isinstance(record, dict):
                    try:
                        made = list(self._record(record))
                    except RecursionError:  # a tool's result is nested too deeply
                        self.broken += 1
                    else:
                        yield from made
                else:
                    self.broken += 1

    def _record(self, record: dict[str, Any]) -> Iterator[Message]:
        kind, uuid, message = record.get("type"), record.get("uuid"), record.get("message")
        if isinstance(record.get("sessionId"), str):
            self.session_id = self.session_id or record["sessionId"]
        if kind not in ("user", "assistant") or not isinstance(uuid, str) or not isinstance(message, dict):
            return
        if record.get("isMeta") or record.get("isCompactSummary") or record.get("isApiErrorMessage"):
            return  # the line is a note of Claude Code, a summary of earlier lines, or an error message of the API
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            return
        blocks = [block for block in blocks if isinstance(block, dict)]
        when, subagent = record.get("timestamp"), bool(record.get("isSidechain"))
        for made in self._assistant(blocks, subagent) if kind == "assistant" else self._user(blocks, uuid, subagent):
            made.setdefault("id", uuid)
            if isinstance(when, str):
                made["occurred_at"] = when
            yield made

    def _assistant(self, blocks: list[dict[str, Any]], subagent: bool) -> Iterator[Message]:
        texts = [_text(block) for block in blocks if block.get("type") == "text"]
        calls = [self._call(block) for block in blocks if block.get("type") == "tool_use"]
        content = "\n".join(filter(None, [*texts, *map(_call_line, calls)])).strip()
        if content:
            made: Message = {"role": "assistant", "content": content, "tool_calls": calls}
            yield made | {"author": SUBAGENT} if subagent else made

    def _user(self, blocks: list[dict[str, Any]], uuid: str, subagent: bool) -> Iterator[Message]:
        results = [block for block in blocks if block.get("type") == "tool_result"]
        for number, block in enumerate(results):
            yield self._result(block, f"{uuid}:{number}" if len(results) > 1 else uuid)
        texts = [_prompt_text(block) for block in blocks if block.get("type") in ("text", "image")]
        content = "\n".join(filter(None, texts)).strip()
        # A subagent's prompt is left out, because the tool call that started the subagent contains the prompt.
        if content and not subagent:
            yield {"role": "user", "content": content, "id": f"{uuid}:text" if results else uuid}

    def _call(self, block: dict[str, Any]) -> dict[str, Any]:
        name, given = str(block.get("name") or "tool"), block.get("input")
        call: dict[str, Any] = {"name": scrub(name), "input": shortened(given if isinstance(given, dict) else {})}
        if isinstance(block.get("id"), str):
            call["id"] = block["id"]
            self.open_calls[block["id"]] = name
        return call

    def _result(self, block: dict[str, Any], id: str) -> Message:
        of = block.get("tool_use_id")
        name = self.open_calls.pop(of, "tool") if isinstance(of, str) else "tool"
        text = excerpt(_result_text(block.get("content")), _RESULT_CHARACTERS, scrub).strip()
        content = f"Error: {text}" if block.get("is_error") else text or "(no output)"
        answer = {"result_of": of, "error": bool(block.get("is_error"))}
        return {"role": "tool", "author": scrub(name)[:200], "content": content, "id": id, "tool_calls": [answer]}


def shortened(value: Any) -> Any:
    """Scrub a tool's input, and cut the middle out of its long texts."""
    if isinstance(value, str):
        return excerpt(value, _INPUT_CHARACTERS, scrub)
    if isinstance(value, dict):
        # There are three steps. First `_cut` limits huge texts to 20,000 characters, so that scrubbing takes little
        # time. Then the whole value is scrubbed. Only then are the texts shortened to what is kept, because half a
        # secret may not look like a secret. The first cut does no harm, because the last step leaves out the text
        # around this cut.
        return {key: shortened(item) for key, item in scrub_value(_cut(value)).items()}
    if isinstance(value, list):
        return [shortened(item) for item in value[:100]]
    return value


def _cut(value: Any, depth: int = 0) -> Any:
    """``value`` without the middle of its huge texts. :func:`shortened` would leave out this part in any case."""
    if isinstance(value, str):
        return value if len(value) <= 20_000 else value[:10_000] + value[-10_000:]
    if isinstance(value, dict) and depth < 20:
        return {key: _cut(item, depth + 1) for key, item in list(value.items())[:200]}
    if isinstance(value, list) and depth < 20:
        return [_cut(item, depth + 1) for item in value[:200]]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    return value if isinstance(value, (int, float, bool)) else None


def _call_line(call: dict[str, Any]) -> str:
    """Describe a tool call in one line that a search can find: the edited file, the command, or the tool's name."""
    name, given = call["name"], call["input"]
    named = (given.get("file_path"), given.get("notebook_path"))
    path = next((one for one in named if one and isinstance(one, str)), "")  # a model may pass anything
    if name in _EDITS and path:
        return f"Edited {path}" if name != "Write" else f"Wrote {path}"
    if given.get("command"):
        return f"Ran: {given['command']}"
    about = path or next((str(value) for value in given.values() if isinstance(value, str) and value), "")
    return f"{name}: {excerpt(about, 200)}" if about else str(name)


def _text(block: dict[str, Any]) -> str:
    text = block.get("text")
    return scrub(text) if isinstance(text, str) else ""


def _prompt_text(block: dict[str, Any]) -> str:
    if block.get("type") == "image":
        return "[image]"
    text = block.get("text")
    if not isinstance(text, str):
        return ""
    text = _without_notes(text)
    if text.startswith(_LOCAL):
        return ""
    if text.startswith("<bash-input>"):  # a command that the user has typed behind "!"
        text = f"!{_inside('bash-input', text)[0]}"
    command = _command(text) if text.startswith("<command-") else None
    return scrub(text if command is None else command)


def _without_notes(text: str) -> str:
    """``text`` without the notes of the program at its beginning and its end."""
    rest, found = text.strip(), True
    while found:
        found = False
        for name in _NOTES:
            begin, end = f"<{name}>", f"</{name}>"
            if rest.startswith(begin) and end in rest:
                rest, found = rest.partition(end)[2].lstrip(), True
            if rest.endswith(end) and begin in rest:
                rest, found = rest.rpartition(begin)[0].rstrip(), True
    return rest if rest != text.strip() else text


def _command(text: str) -> str | None:
    """The name and the arguments of a slash command. ``None`` if ``text`` is no command."""
    name, rest = _inside("command-name", text)
    if name is None:
        return None
    arguments, _ = _inside("command-args", rest)
    return " ".join(filter(None, (name, arguments)))


def _inside(tag: str, text: str) -> tuple[str | None, str]:
    """The text between the first ``<tag>`` and the next ``</tag>``, and the text after them. ``None`` without them."""
    inside, closed, rest = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")
    return (inside, rest) if closed else (None, text)


def _result_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [
            _result_text(block.get("text")) or f"[{block.get('type')}]" for block in content if isinstance(block, dict)
        ]
        return "\n".join(texts)
    return ""
