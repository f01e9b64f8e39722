"""Where a command's words go: its result to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console

PAGE_WIDTH, _ENDLESS = 80, 1_000_000  # columns


_json = False


def _remember(value: bool) -> bool:
    global _json
    _json = value
    return value


JSON = typer.Option("--json", help="Print one JSON document.", callback=_remember)


def json_wanted() -> bool:
    """Whether the command in progress was asked for JSON: an error is then a document too."""
    return _json


def emit(document: object) -> None:
    """Print one JSON document; times in ISO 8601 with a zone."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    print(json.dumps(document, default=_plain, ensure_ascii=not unicode, indent=2))


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def iso(moment: datetime) -> str:
    """ISO 8601 with a zone, ``Z`` for UTC; a naive time is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat().replace("+00:00", "Z")


# What people wrote may hold "[bold]" or ":smile:", so neither markup nor emoji codes mean anything on any console.
# Made anew for each use: tests and pipes replace the streams.
def out() -> Console:
    """The console for results: as wide as the terminal; in a pipe, where people search, no line is broken."""
    return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _ENDLESS)


def page() -> Console:
    """The console for what is laid out to be read as a whole: 80 columns wherever it goes."""
    console = Console(markup=False, emoji=False, highlight=False)
    console.width = min(console.width, PAGE_WIDTH) if sys.stdout.isatty() else PAGE_WIDTH
    return console


def err() -> Console:
    """The console for hints, warnings and progress."""
    # In a log a line stays a line, however long.
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=not sys.stderr.isatty())


def hint(text: str) -> None:
    """Tell a person what to do next; scripts ignore it."""
    err().print(text, style="dim")


def warn(text: str) -> None:
    """Tell a person that something is not as they may think."""
    err().print(f"warning: {text}", style="yellow")
