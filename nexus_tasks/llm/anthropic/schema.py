"""Build the JSON schema of an answer for Claude, without unneeded parts, because every call pays for its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

# Keys that are left out. Pydantic adds titles and defaults, which no call needs. Claude's structured output does not
# support bounds, so the answer type checks the bounds when an answer is validated.
_REMOVED = frozenset(("title", "default", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"))


@lru_cache(maxsize=32)
def answer_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``answer`` for ``output_config``.

    Each reference is replaced by its definition, so recursive answer types are not supported. Titles, defaults and
    docstrings are left out. A field's ``description`` stays, because it is part of the prompt.
    """
    import anthropic

    schema = answer.model_json_schema()
    return anthropic.transform_schema(_short(schema, schema.get("$defs", {})))


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
