"""The JSON schema of an answer, without unneeded parts, because every call pays for its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

TOOL = "answer"  # the name of the tool whose input is the answer, for models that answer by a tool call

# Keys that are left out. Pydantic adds titles and defaults, which no call needs. Structured output does not support
# bounds everywhere, so the answer type checks the bounds when an answer is validated.
_REMOVED = frozenset(("title", "default", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"))


@lru_cache(maxsize=32)
def short_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``answer``, without titles, defaults, bounds and docstrings.

    Each reference is replaced by its definition, so recursive answer types are not supported. A field's ``description``
    stays, because it is part of the prompt.
    """
    schema = answer.model_json_schema()
    return _short(schema, schema.get("$defs", {}))


@lru_cache(maxsize=32)
def strict_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The short schema as OpenAI's strict mode wants it: objects are closed, and every field is required."""
    closed = _closed(short_schema(answer))
    assert isinstance(closed, dict)
    return closed


def in_words(answer: type[BaseModel]) -> str:
    """Instructions to answer as JSON, for a model that is not given the schema in another way."""
    return (
        "\n\nAnswer with one JSON object and nothing else: no code fence, no text before or after it. The object has to"
        f" fit this JSON schema:\n{json.dumps(strict_schema(answer), ensure_ascii=False)}"
    )


def _short(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        kept = {"description": schema["description"]} if "description" in schema else {}
        return _short(target, definitions) | kept
    short: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _REMOVED or name == "$defs" or (name == "description" and schema.get("type") == "object"):
            continue
        if name == "properties":
            short[name] = {field: _short(each, definitions) for field, each in value.items()}
        elif isinstance(value, dict):
            short[name] = _short(value, definitions)
        elif name in ("anyOf", "allOf"):
            short[name] = [_short(each, definitions) for each in value]
        else:
            short[name] = value
    return short


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if schema.get("type") == "object":
        closed |= {"additionalProperties": False, "required": list(schema.get("properties", {}))}
    return closed
