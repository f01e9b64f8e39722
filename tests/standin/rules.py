"""What the API refuses before a model sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.message import Message
from typing import Any

from tests.standin.faults import Fault, not_found, status

MODELS = frozenset(
    {
        "small",
        "claude-haiku-5-5",
        "claude-sonnet-5-5",
        "claude-opus-5-5",
        "claude-sonnet-5",
        "claude-opus-5",
        "claude-haiku-4-5",
    }
)
CUSTOM_ID = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
MARKERS = 4


def refuse_headers(headers: Message[str, str]) -> Fault | None:
    """No key, or no version."""
    if headers.get("Api-Key") or (headers.get("Authorization") and "openai" in str(headers.get("User-Agent")).lower()):
        return None  # OpenAI's SDK, which knows no such version
    if not (headers.get("Authorization") or headers.get("X-Api-Key")):
        return status(401, "authentication_error", "x-api-key header is required")
    return None if headers.get("anthropic-version") else _bad("anthropic-version: header is required")


def refuse_params(
    params: Mapping[str, Any], models: frozenset[str] | set[str], lacks: frozenset[str] = frozenset()
) -> Fault | None:
    """A malformed Messages body, or an unknown model."""
    missing = [name for name in ("model", "max_tokens", "messages") if not params.get(name)]
    if missing:
        return _bad(f"{missing[0]}: Field required")
    if params["model"] not in models:
        return not_found(params["model"])
    if "temperature" in params:
        return _bad("temperature: Extra inputs are not permitted")
    blocks = _blocks(params)
    for feature, field in (("schema", "output_config"), ("tool", "tools")):
        if feature in lacks and field in params:
            return _bad(f"{field}: Extra inputs are not permitted")
    if "caching" in lacks and any("cache_control" in block for block in blocks):
        return _bad("system.0.cache_control: Extra inputs are not permitted")
    if any(not block.get("text", "").strip() for block in blocks):
        return _bad("messages: text content blocks must be non-empty")
    if sum(bool(block.get("cache_control")) for block in blocks) > MARKERS:
        return _bad(f"A maximum of {MARKERS} blocks with cache_control may be provided.")
    return _refuse_schema(params)


def _blocks(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    contents = [params.get("system") or [], *(said.get("content") or "" for said in params["messages"])]
    blocks: list[dict[str, Any]] = []
    for content in contents:
        blocks += [{"text": content}] if isinstance(content, str) else content
    return [block for block in blocks if block.get("type", "text") == "text"]


def _refuse_schema(params: Mapping[str, Any]) -> Fault | None:
    form = (params.get("output_config") or {}).get("format")
    if form is None:
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        return _bad("output_config.format: Input should be a json_schema")
    return _bad("output_config.format.schema: " + flaw) if (flaw := _flaw(form["schema"])) else None


def _flaw(schema: Any) -> str:
    if isinstance(schema, list):
        return next(filter(None, map(_flaw, schema)), "")
    if not isinstance(schema, dict):
        return ""
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return "For 'object' type, 'additionalProperties' must be explicitly set to false"
    unsupported = {"minimum", "maximum", "maxItems", "minLength", "maxLength"} & schema.keys()
    if unsupported and "type" in schema:
        return f"property {min(unsupported)} is not supported"
    return next(filter(None, map(_flaw, schema.values())), "")


def _bad(message: str) -> Fault:
    return status(400, "invalid_request_error", message)
