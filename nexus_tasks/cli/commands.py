"""The commands of ``nexus`` by name. A command's module is imported when the command is called or described.

Importing all modules and reading all signatures took 0.06 s of every command's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

# In the order of `nexus --help`: a command, and the function or the group (a Typer application) that it is.
COMMANDS = {
    "demo": "demo:demo",
    "init": "init:init",
    "up": "stack.commands:up",
    "down": "stack.commands:down",
    "ingest": "ingest:ingest",
    "remember": "ingest:remember",
    "search": "recall:search",
    "context": "recall:context",
    "ask": "recall:ask",
    "profile": "recall:profile",
    "digest": "consolidation:digest",
    "dream": "consolidation:dream",
    "extract": "consolidation:extract",
    "undo": "consolidation:undo",
    "forget": "forget:forget",
    "export": "transfer:export",
    "import": "transfer:import_",
    "status": "status:status",
    "metrics": "metrics:metrics",
    "audit": "tokens:audit",
    "mcp": "mcp:mcp",
    "serve": "serve:serve",
    "browse": "browse:browse",
    "doctor": "doctor:doctor",
    "health": "health:health",
    "completion": "completion:completion",
    "db": "db:app",
    "memories": "memories:app",
    "sessions": "sessions:app",
    "namespaces": "namespaces:app",
    "cells": "cells:app",
    "topics": "topics:app",
    "jobs": "jobs:app",
    "tokens": "tokens:app",
    "webhooks": "webhooks:app",
    "buffer": "buffer:app",
    "hook": "hook:app",
}


class _Loaded(Mapping[str, Any]):
    """The commands. A lookup imports the command's module."""

    def __getitem__(self, command: str) -> Any:
        module, _, name = COMMANDS[command].partition(":")
        found = getattr(import_module(f"nexus_tasks.cli.{module}"), name)
        alone = typer.Typer(rich_markup_mode="markdown")  # joins the lines of a docstring into paragraphs
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=command)
        else:
            alone.command(command)(found)
        return get_group(alone).commands[command]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandsByName(TyperGroup):
    """The group of all commands. It knows their names, and loads a command that is looked up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Loaded()  # type: ignore[assignment]  # Typer adds commands to a dict; none is added here
