"""The stand-in's second face: OpenAI's Chat Completions API, translated to and from Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.standin.faults import Fault, not_found, status

STOPS = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "stop"}
SUPPORTED = frozenset(("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"))
PIECE = 16  # characters


def refuse(body: Mapping[str, Any], models: set[str], lacks: frozenset[str]) -> Fault | None:
    """A malformed body, an unknown model, or a field that this server does not know."""
    if body.get("model") not in models:
        return not_found(str(body.get("model")))
    if any(not isinstance(said["content"], str) or not said["content"] for said in body["messages"]):
        return _bad("messages: content must be a non-empty string")
    for field in ("max_tokens", "max_completion_tokens"):
        if field in body and field in lacks:
            return _bad(f"Unsupported parameter: '{field}' is not supported with this model.")
    if "response_format" in body and "schema" in lacks:
        return _bad("This response_format type is unavailable now")
    if "tools" in body and "tool" in lacks:
        return _bad("registry.example/library/small:latest does not support tools")
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema" and (flaw := _flaw(form["json_schema"]["schema"])):
        return _bad(f"Invalid schema for response_format '{form['json_schema']['name']}': {flaw}")
    return None


def as_messages(body: Mapping[str, Any], ignores: frozenset[str]) -> dict[str, Any]:
    """The body as a Messages request, without what this server ignores."""
    system = [said["content"] for said in body["messages"] if said["role"] == "system"]
    params: dict[str, Any] = {
        "model": body["model"],
        "max_tokens": body.get("max_tokens") or body.get("max_completion_tokens"),
        "system": "\n".join(system),
        "messages": [said for said in body["messages"] if said["role"] != "system"],
        "stream": bool(body.get("stream")),
    }
    if "response_format" in body and "schema" not in ignores:
        schema = body["response_format"]["json_schema"]["schema"]
        params["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if "tools" in body and "tool" not in ignores:
        called = body["tools"][0]["function"]
        params["tools"] = [{"name": called["name"], "input_schema": called["parameters"]}]
        params["tool_choice"] = {"type": "tool", "name": body["tool_choice"]["function"]["name"]}
    return params


def error(fault: Fault) -> dict[str, Any]:
    """OpenAI's error object."""
    code = fault.code or {"not_found_error": "model_not_found", "billing_error": "insufficient_quota"}.get(fault.type)
    if "too long" in fault.message:
        code = "context_length_exceeded"
    return {"error": {"message": fault.message, "type": fault.type, "param": None, "code": code}}


def completion(message: Mapping[str, Any], *, usage: bool) -> dict[str, Any]:
    """A Messages reply as a ``chat.completion``."""
    said: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for block in message["content"]:
        if block["type"] == "text":
            said["content"] = (said["content"] or "") + block["text"]
        else:
            function = {"name": block["name"], "arguments": block["arguments"]}
            said["tool_calls"] = [{"id": block["id"], "type": "function", "function": function}]
    if message["stop_reason"] == "refusal":
        said["refusal"] = message["stop_details"]["explanation"]
    stop = STOPS.get(message["stop_reason"], message["stop_reason"])
    whole = {
        "id": message["id"],
        "object": "chat.completion",
        "created": 1_767_225_600,
        "model": message["model"],
        "choices": [{"index": 0, "message": said, "finish_reason": stop, "logprobs": None}],
    }
    return {**whole, "usage": _usage(message["usage"])} if usage else whole


def _usage(billed: Mapping[str, Any]) -> dict[str, Any]:
    read, written = billed["cache_read_input_tokens"], billed["cache_creation_input_tokens"]
    prompt = billed["input_tokens"] + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": billed["output_tokens"],
        "total_tokens": prompt + billed["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }


def streamed(whole: Mapping[str, Any]) -> str:
    """The server-sent events of a completion, in pieces of 16 characters."""
    return "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in _chunks(whole)) + "data: [DONE]\n\n"


def _chunks(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    [choice] = whole["choices"]
    said = choice["message"]

    def chunk(delta: dict[str, Any], stop: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(said["content"] or ""):
        yield chunk({"content": piece})
    for call in said.get("tool_calls", ()):
        yield chunk({"tool_calls": [{"index": 0, **call, "function": {**call["function"], "arguments": ""}}]})
        for piece in _pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    if said["refusal"]:
        yield chunk({"refusal": said["refusal"]})
    yield chunk({}, choice["finish_reason"])
    if "usage" in whole:
        yield {**head, "choices": [], "usage": whole["usage"]}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _flaw(schema: Any) -> str:
    """What OpenAI's strict mode refuses in a schema."""
    if isinstance(schema, list):
        return next(filter(None, map(_flaw, schema)), "")
    if not isinstance(schema, dict):
        return ""
    if unsupported := schema.keys() - SUPPORTED - {"description"}:
        return f"'{min(unsupported)}' is not permitted"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false"
        if sorted(schema.get("required", [])) != sorted(schema["properties"]):
            return "'required' is required to be an array including every key in properties"
    children = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("anyOf")]
    return next(filter(None, map(_flaw, children)), "")


def _bad(message: str) -> Fault:
    return status(400, "invalid_request_error", message)
