"""Read messages from the transcripts of Claude Code, which are JSONL files.

Prompts, answers, tool calls and tool results become messages. Placeholders replace the secrets in them. The agent
appends lines to a transcript, and sometimes rewrites the file. The id of a message comes from the ``uuid`` of its line.
Therefore a second reading of a line stores no second message, even after the file was rewritten. Unknown lines and
fields are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nexus_tasks.transcripts import reader
from nexus_tasks.transcripts.reader import Message, call_line
from nexus_tasks.transcripts.scrubbing import scrub

SUBAGENT = "subagent"
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


class Reader(reader.Reader):
    """Turns lines of a transcript of Claude Code into messages."""

    def _record(self, record: dict[str, Any], _line: bytes) -> Iterator[Message]:
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
        calls = [
            self._call(str(block.get("name") or "tool"), block.get("input"), block.get("id"))
            for block in blocks
            if block.get("type") == "tool_use"
        ]
        content = "\n".join(filter(None, [*texts, *map(call_line, calls)])).strip()
        if content:
            made: Message = {"role": "assistant", "content": content, "tool_calls": calls}
            yield made | {"author": SUBAGENT} if subagent else made

    def _user(self, blocks: list[dict[str, Any]], uuid: str, subagent: bool) -> Iterator[Message]:
        results = [block for block in blocks if block.get("type") == "tool_result"]
        for number, block in enumerate(results):
            made = self._result(
                block.get("tool_use_id"), _result_text(block.get("content")), error=bool(block.get("is_error"))
            )
            yield made | {"id": f"{uuid}:{number}" if len(results) > 1 else uuid}
        texts = [_prompt_text(block) for block in blocks if block.get("type") in ("text", "image")]
        content = "\n".join(filter(None, texts)).strip()
        # A subagent's prompt is left out, because the tool call that started the subagent contains the prompt.
        if content and not subagent:
            yield {"role": "user", "content": content, "id": f"{uuid}:text" if results else uuid}


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
