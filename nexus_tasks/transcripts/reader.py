"""Read messages from the transcript of a coding agent: a JSONL file in which the agent records a session.

Each agent has a subclass of :class:`Reader`. Placeholders replace the secrets in messages.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from nexus_tasks.transcripts.excerpt import excerpt
from nexus_tasks.transcripts.scrubbing import scrub, scrub_value

Message = dict[str, Any]  # the fields of nexus_tasks.Message, with JSON types (`occurred_at` is a text)

# The most characters that are kept of a tool's result, and of each text in a tool's input. Chosen by hand.
_RESULT_CHARACTERS, _INPUT_CHARACTERS = 2_000, 1_000
_EDITS = frozenset(("Edit", "MultiEdit", "Write", "NotebookEdit", "FileEdit", "FileWrite"))
_SHELLS = ("-c", "-lc")


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
        for raw in lines:
            line = raw.lstrip(b"\0")  # after a power cut, a file may have zeros before its next line
            if line.strip():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    self.broken += 1
                    continue
                if isinstance(record, dict):
                    try:
                        made = list(self._record(record, line))
                    except RecursionError:  # a tool's result is nested too deeply
                        self.broken += 1
                    else:
                        yield from made
                else:
                    self.broken += 1

    def _record(self, record: dict[str, Any], line: bytes) -> Iterator[Message]:
        """The messages of one line."""
        raise NotImplementedError

    def _call(self, name: str, given: Any, id: Any) -> dict[str, Any]:
        """A tool call as a message keeps it."""
        call: dict[str, Any] = {"name": scrub(name), "input": shortened(given if isinstance(given, dict) else {})}
        if isinstance(id, str):
            call["id"] = id
            self.open_calls[id] = name
        return call

    def _result(self, of: Any, text: str, *, error: bool) -> Message:
        """The message with the result of the tool call whose id is ``of``."""
        name = self.open_calls.pop(of, "tool") if isinstance(of, str) else "tool"
        text = excerpt(text, _RESULT_CHARACTERS, scrub).strip()
        content = f"Error: {text}" if error else text or "(no output)"
        answer = {"result_of": of, "error": error}
        return {"role": "tool", "author": scrub(name)[:200], "content": content, "tool_calls": [answer]}


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
        return value if len(value) <= 20_000 else _ends(value)
    if isinstance(value, dict) and depth < 20:
        return {key: _cut(item, depth + 1) for key, item in list(value.items())[:200]}
    if isinstance(value, list) and depth < 20:
        return [_cut(item, depth + 1) for item in value[:200]]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    return value if isinstance(value, (int, float, bool)) else None


def _ends(text: str) -> str:
    """The beginning and the end of a huge text, in whole lines: a row of a table that is cut would end the table."""
    head, tail = text[:10_000], text[-10_000:]
    return head[: head.rfind("\n", 9_000) + 1 or None] + tail[tail.find("\n", 0, 1_000) + 1 :]


def call_line(call: dict[str, Any]) -> str:
    """Describe a tool call in one line that a search can find: the edited file, the command, or the tool's name."""
    name, given = call["name"], call["input"]
    named = (given.get("file_path"), given.get("notebook_path"))
    path = next((one for one in named if one and isinstance(one, str)), "")  # a model may pass anything
    if name in _EDITS and path:
        return f"Edited {path}" if name != "Write" else f"Wrote {path}"
    if command := given.get("command") or given.get("cmd"):
        return f"Ran: {_command_text(command)}"
    about = path or next((str(value) for value in given.values() if isinstance(value, str) and value), "")
    return f"{name}: {excerpt(about, 200)}" if about else str(name)


def _command_text(command: Any) -> str:
    """A shell command as text. Codex gives it as a list: ``["bash", "-lc", "pytest -q"]``."""
    if not isinstance(command, list):
        return str(command)
    words = [str(word) for word in command]
    return words[2] if len(words) == 3 and words[1] in _SHELLS else shlex.join(words)
