"""The messages of Anthropic's Messages API, as messages to store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nexus_tasks.services.transcript_messages import message_of
from nexus_tasks.types import Message, clean_text

_LAST = re.compile(rb'"type"\s{0,9}:\s{0,9}"message_stop"')  # quotes inside a text are escaped, and do not match


def new_turns(messages: Sequence[Mapping[str, Any]], author: str | None) -> list[Message]:
    """What the user and the tools have said since the last answer: the messages behind the last assistant's.

    A message of the assistant at the end is no answer yet. It is the beginning of the answer that the caller wants.
    System messages in the conversation are left out, because neither the user nor a tool has said them.

    The id of a message is a hash of the conversation up to it. A call that is made again stores nothing twice, and two
    equal turns of one conversation stay two.
    """
    end = len(messages) - (messages[-1]["role"] == "assistant") if messages else 0
    answers = [position for position, message in enumerate(messages[:end]) if message["role"] == "assistant"]
    first = answers[-1] + 1 if answers else 0
    digest = hashlib.sha256(json.dumps(messages[:first], sort_keys=True, default=str).encode())
    said = list[Message]()
    for message in messages[first:end]:
        digest.update(json.dumps(message, sort_keys=True, default=str).encode())
        if message["role"] == "user":
            said += _said(message["content"], f"turn:{digest.hexdigest()[:40]}", author)
    return said


def _said(content: Any, id: str, author: str | None) -> Iterable[Message]:
    blocks = _blocks(content)
    if text := _text(blocks):
        yield message_of({"role": "user", "author": author, "content": text, "id": id})
    for number, block in enumerate(block for block in blocks if block.get("type") == "tool_result"):
        if result := _text(_blocks(block.get("content") or "")):
            call = {"tool_use_id": block.get("tool_use_id")}
            yield message_of({"role": "tool", "content": result, "tool_calls": (call,), "id": f"{id}:{number}"})


def answer_of(message: Mapping[str, Any]) -> list[Message]:
    """The answer of the model, if it has a text or tool calls."""
    blocks = _blocks(message["content"])
    calls = tuple({**block} for block in blocks if block.get("type") == "tool_use")
    text = _text(blocks)
    if not text and not calls:
        return []
    return [message_of({"role": "assistant", "content": text, "tool_calls": calls, "id": f"answer:{message['id']}"})]


def last_question(messages: Sequence[Mapping[str, Any]], most: int) -> str:
    """The last ``most`` characters of the newest message of the user that has a text; empty without one."""
    said = (_text(_blocks(message["content"])) for message in reversed(messages) if message["role"] == "user")
    return next((text for text in said if text), "")[-most:]


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _text(blocks: Iterable[Mapping[str, Any]]) -> str:
    return clean_text("\n".join(block["text"] for block in blocks if block.get("type") == "text")).strip()


class Events:
    """The server-sent events of an answer, which come in parts."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._lines = 0  # the number of bytes in whole lines

    def split(self, part: bytes) -> tuple[bytes, bytes]:
        """Add ``part``, and split it before the line of the last event, ``message_stop``, if it completes this line."""
        self._read += part
        start, self._lines = self._lines, max(self._lines, self._read.rfind(b"\n", self._lines) + 1)
        last = _LAST.search(self._read, start, self._lines)
        if last is None:
            return part, b""
        line = self._read.rfind(b"\n", 0, last.start()) + 1
        before = max(line - (len(self._read) - len(part)), 0)
        return part[:before], part[before:]

    def message(self) -> dict[str, Any] | None:
        """The message; ``None`` before it is complete."""
        return streamed(bytes(self._read[: self._lines]))


def streamed(body: bytes) -> dict[str, Any] | None:
    """The message that server-sent events of the Messages API make up; ``None`` when they end before it is complete."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    # Only a line feed ends a line here. `splitlines` would also split at others, such as U+2028 in a text.
    for line in body.decode("utf-8", "replace").split("\n"):
        event = json.loads(line.partition(":")[2]) if line.startswith("data:") else {}
        match event.get("type"):
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                elif delta["type"] == "input_json_delta":
                    block["json"] += delta["partial_json"]
            case "message_stop":
                return {**message, "content": [_whole(blocks[index]) for index in sorted(blocks)]}
    return None


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    written = block.pop("json")
    return {**block, "input": json.loads(written)} if written else block
