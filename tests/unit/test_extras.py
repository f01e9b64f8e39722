"""An adapter without its framework says which extra to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, sys
from nexus_tasks.errors import MissingExtra
for package in ("langgraph", "langchain_core", "agents", "pydantic_ai", "llama_index"):
    sys.modules[package] = None  # as if it was not installed
for name in ("langgraph", "openai_agents", "pydantic_ai", "llama_index"):
    try:
        importlib.import_module(f"nexus_tasks.integrations.{name}")
    except MissingExtra as error:
        print(error.remedy)
"""


def test_a_missing_framework_is_named_with_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    extras = ("langgraph", "openai-agents", "pydantic-ai", "llama-index")
    assert done.stdout.splitlines() == [f"Install the extra: `pip install 'nexus-tasks[{name}]'`." for name in extras]
