"""The two protocols that the stand-in speaks, and what a server without a feature leaves out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.standin import openai
from tests.standin.faults import Fault
from tests.standin.wire import Reply

if TYPE_CHECKING:
    from tests.standin.server import StandIn


class Messages:
    """Replies of Anthropic's API."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin

    def error(self, fault: Fault) -> Reply:
        """An error."""
        return Reply.of(fault)

    def whole(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message, as whole as this server sends it."""
        content = [{name: block[name] for name in block if name != "arguments"} for block in message["content"]]
        usage = message["usage"]
        if "caching" in self._standin.lacks | self._standin.ignores:
            usage = {name: usage[name] for name in ("input_tokens", "output_tokens")}
        return {**message, "content": content, "usage": usage}

    def streamed(self, message: dict[str, Any]) -> str:
        """The server-sent events of a message: its text comes in pieces of 16 characters."""
        begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
        for index, block in enumerate(message["content"]):
            is_text = block["type"] == "text"
            text = block["text"] if is_text else json.dumps(block["input"])
            start_of = {**block, "text": ""} if is_text else {**block, "input": {}}
            events.append({"type": "content_block_start", "index": index, "content_block": start_of})
            for start in range(0, len(text), 16):
                piece = text[start : start + 16]
                delta = (
                    {"type": "text_delta", "text": piece}
                    if is_text
                    else {"type": "input_json_delta", "partial_json": piece}
                )
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence", "stop_details")}
        events.append(
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
        )
        events.append({"type": "message_stop"})
        return "".join(f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events)


class Chat:
    """Replies of OpenAI's API."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin

    def error(self, fault: Fault) -> Reply:
        """An error."""
        return (
            Reply.of(fault)
            if fault.body is not None
            else Reply(fault.status, openai.error(fault), headers=fault.headers)
        )

    def whole(self, message: dict[str, Any]) -> dict[str, Any]:
        """A completion."""
        return openai.completion(message, usage="usage" not in self._standin.ignores)

    def streamed(self, whole: dict[str, Any]) -> str:
        """Its server-sent events."""
        return openai.streamed(whole)


def without(params: dict[str, Any], ignores: frozenset[str]) -> dict[str, Any]:
    """A Messages request without what a server ignores."""
    fields = {"schema": ("output_config",), "tool": ("tools", "tool_choice")}
    left_out = {name for feature in ignores for name in fields.get(feature, ())}
    return {name: value for name, value in params.items() if name not in left_out}


def call_tool(message: dict[str, Any], tool: str) -> None:
    """Turn the text of a message into the input of a tool. Input that is cut off is lost."""
    text = "".join(block["text"] for block in message["content"])
    if not text:
        return
    try:
        given = json.loads(text)
    except ValueError:
        given = {}
    block = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": given, "arguments": text}
    message["content"] = [block]
    if message["stop_reason"] == "end_turn":
        message["stop_reason"] = "tool_use"
