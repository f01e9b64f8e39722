"""Read messages from the transcripts of Codex, which are JSONL files (``~/.codex/sessions/…/rollout-*.jsonl``).

A line is ``{"timestamp", "type", "payload"}``. Prompts are the lines ``event_msg`` of the type ``user_message``. The
lines ``response_item`` have the answers, the tool calls and their results; those of the role ``user`` also have texts
that Codex itself adds, so they are skipped. A line has no id. The id of its message is a hash of the line, so a second
reading of the line stores no second message. Unknown lines and fields are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from nexus_tasks.transcripts import reader
from nexus_tasks.transcripts.reader import Message, call_line
from nexus_tasks.transcripts.scrubbing import scrub
from nexus_tasks.transcripts.scrubbing.lazy import lazy

_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
# An editor puts the open files before what the user says.
_EDITOR, _REQUEST = "# Context from my IDE setup:", "## My request for Codex:"
_EXIT_CODE = lazy(r"^(?:Process exited with code|Exit code:) {1,3}([0-9]{1,9})", re.MULTILINE)
_PATCHED = lazy(r"^\*\*\* (?:Add|Update|Delete) File: ([^\n]{1,1000})", re.MULTILINE)
_FIRST = 500  # characters of a result, in which the exit code stands


class Reader(reader.Reader):
    """Turns lines of a transcript of Codex into messages."""

    def _record(self, record: dict[str, Any], line: bytes) -> Iterator[Message]:
        kind, payload, when = record.get("type"), record.get("payload"), record.get("timestamp")
        if not isinstance(payload, dict):
            return
        if kind == "session_meta" and isinstance(id := payload.get("id") or payload.get("session_id"), str):
            self.session_id = self.session_id or id
        made = self._message(kind, payload)
        if made and made["content"]:
            made["id"] = f"line:{sha256(line.strip()).hexdigest()[:32]}"
            if isinstance(when, str):
                made["occurred_at"] = when
            yield made

    def _message(self, kind: Any, payload: dict[str, Any]) -> Message | None:
        what = payload.get("type")
        if kind == "event_msg" and what == "user_message":
            return {"role": "user", "content": _prompt(payload)}
        if kind != "response_item":
            return None
        if what == "message" and payload.get("role") == "assistant":
            return {"role": "assistant", "content": scrub(_text(payload.get("content"))).strip()}
        if what in _CALLS:
            call = self._call(_name(payload), _given(payload), payload.get("call_id"))
            return {"role": "assistant", "content": _line(call), "tool_calls": [call]}
        if what in _RESULTS:
            text, error = _output(payload.get("output"))
            return self._result(payload.get("call_id"), text, error=error)
        return None


def asked(prompt: str) -> str:
    """What the user says in a prompt: the prompt without what an editor has put before it."""
    if prompt.startswith(_EDITOR) and _REQUEST in prompt:
        return prompt.partition(_REQUEST)[2].strip()
    return prompt


def patched_files(text: str) -> list[str]:
    """The files that a patch of the tool ``apply_patch`` adds, changes or deletes."""
    return _PATCHED().findall(text)


def _prompt(payload: dict[str, Any]) -> str:
    if payload.get("kind") not in (None, "plain") or not isinstance(payload.get("message"), str):
        return ""  # older releases of Codex record what they add themselves with another kind
    lists = [payload.get(name) for name in ("images", "local_images")]
    images = ["[image]"] * sum(len(one) for one in lists if isinstance(one, list))
    return "\n".join(filter(None, [*images, scrub(asked(payload["message"]))])).strip()


def _name(payload: dict[str, Any]) -> str:
    if payload["type"] == "local_shell_call":
        return "shell"
    names = [payload.get(one) for one in ("namespace", "name")]  # of an MCP server, and of its tool
    return "".join(name for name in names if isinstance(name, str)) or "tool"


def _given(payload: dict[str, Any]) -> dict[str, Any]:
    given = next((payload[one] for one in ("arguments", "input", "action") if payload.get(one) is not None), None)
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {"text": given}
    return given if isinstance(given, dict) else {}


def _line(call: dict[str, Any]) -> str:
    texts = (value for value in call["input"].values() if isinstance(value, str))
    if call["name"] == "apply_patch" and (paths := patched_files("\n".join(texts))):
        return f"Edited {', '.join(paths)}"
    return call_line(call)


def _output(output: Any) -> tuple[str, bool]:
    """The text of a tool's result, and whether the tool failed."""
    if isinstance(output, dict):
        return _text(output.get("content")), output.get("success") is False
    text = _text(output)
    if text.startswith("{"):  # a command's result in releases of Codex until 2026
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("output"), str):
            about = found.get("metadata")
            return found["output"], isinstance(about, dict) and about.get("exit_code") not in (None, 0)
    code = _EXIT_CODE().search(text[:_FIRST])
    return text, code is not None and int(code[1]) != 0


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(block["text"] for block in content if isinstance(block, dict) and _is_text(block))
    return ""


def _is_text(block: dict[str, Any]) -> bool:
    return isinstance(block.get("text"), str)
