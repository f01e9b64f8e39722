"""Output of commands: results go to standard output; hints, warnings, progress and errors to standard error."""

from __future__ import annotations

import json
import sys

import typer
from rich.console import Console

from nexus_tasks.types import plain

PAGE_WIDTH, _ENDLESS = 80, 1_000_000  # columns


_json = False


def _remember(value: bool) -> bool:
    global _json
    _json = value
    return value


JSON = typer.Option("--json", help="Print one JSON document.", callback=_remember)


def json_wanted() -> bool:
    """Whether the present command has ``--json``; with ``--json`` an error is printed as a document."""
    return _json


def emit(document: object) -> None:
    """Print one JSON document. Its times are in ISO 8601 with a zone."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    print(json.dumps(plain(document), ensure_ascii=not unicode, indent=2))


# Messages may hold "[bold]" or ":smile:", so markup and emoji codes are off on every console. Every call makes a new
# console, because tests and pipes replace the streams.
def out() -> Console:
    """The console for results: as wide as the terminal. In a pipe it wraps no line: `grep` finds whole lines."""
    return Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _ENDLESS)


def page() -> Console:
    """The console for a whole page, such as the demo's report: at most 80 columns, also in a pipe."""
    console = Console(markup=False, emoji=False, highlight=False)
    console.width = min(console.width, PAGE_WIDTH) if sys.stdout.isatty() else PAGE_WIDTH
    return console


def err() -> Console:
    """The console for hints, warnings and progress."""
    # On a terminal long lines are wrapped, in a log they are not.
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=not sys.stderr.isatty())


def hint(text: str) -> None:
    """Print on standard error what a person may do next."""
    err().print(text, style="dim")


def warn(text: str) -> None:
    """Print a warning on standard error."""
    err().print(f"warning: {text}", style="yellow")
