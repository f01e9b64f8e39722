"""The frameworks, and how a test file without its framework is left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

FRAMEWORKS = {
    "langgraph": "langgraph",
    "agents": "openai-agents",
    "pydantic_ai": "pydantic-ai",
    "llama_index": "llama-index",
    "django": "django",
    "fastapi": "http",
}
INSTALLED = Path(__file__).parents[2] / ".venv" / ".adapters"  # `make adapters` writes it


def needs(package: str) -> None:
    """Leave the test file out when its framework is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: run `make adapters`.", allow_module_level=True)
