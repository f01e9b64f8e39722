"""The JSON schema of an answer in the form that Claude's structured output takes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from nexus_tasks.llm.answer_schema import short_schema


@lru_cache(maxsize=32)
def answer_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``answer`` for ``output_config``, and for the input of a tool."""
    import anthropic

    return anthropic.transform_schema(short_schema(answer))
