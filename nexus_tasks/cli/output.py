"""Print the output of commands.

Results go to standard output. Hints, warnings, progress and errors go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nexus_tasks.types import plain
from nexus_tasks.types.hidden_characters import escape_in_json, show_hidden
from nexus_tasks.types.unicode_form import takes_unicode

PAGE_WIDTH, _ENDLESS = 80, 1_000_000  # columns


_json = False


def _remember(value: bool) -> bool:
    global _json
    _json = value
    return value


JSON = typer.Option("--json", help="Print one JSON document.", callback=_remember)


def no_color() -> bool:
    """Whether the variable NO_COLOR is set and not empty (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def json_wanted() -> bool:
    """Whether the present command has the option ``--json``. With this option, an error is printed as JSON too."""
    return _json


def emit(document: object) -> None:
    """Print one JSON document. Times in the document have the format ISO 8601 with a zone."""
    print(escape_in_json(json.dumps(plain(document), ensure_ascii=not takes_unicode(sys.stdout), indent=2)))


def say(text: str) -> None:
    """Print a text that may contain stored text. Characters that control a terminal are printed as escapes."""
    print(show_hidden(text))


class _Console(Console):
    """A console that prints hidden characters of a text as escapes, and its own colours as they are.

    Under NO_COLOR it prints no bold and no dim text either: rich by itself leaves out colours alone.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(color_system=None if no_color() else "auto", **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=show_hidden(segment.text))


# A message may contain "[bold]" or ":smile:". Therefore every console prints markup and emoji codes as plain text.
# Each call makes a new console, because tests replace the streams between calls.
def out() -> Console:
    """The console for results. In a pipe the console wraps no line, so that `grep` finds whole lines."""
    return _Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _ENDLESS)


def page() -> Console:
    """The console for a whole page, such as the demo's report. The page is at most 80 columns wide, also in a pipe."""
    console = _Console(markup=False, emoji=False, highlight=False)
    console.width = min(console.width, PAGE_WIDTH) if sys.stdout.isatty() else PAGE_WIDTH
    return console


def err() -> Console:
    """The console for hints, warnings and progress."""
    # A terminal wraps long lines. In a log, long lines stay whole.
    return _Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=not sys.stderr.isatty())


def hint(text: str) -> None:
    """Print a hint on standard error: a possible next step for a person."""
    err().print(text, style="dim")


def warn(text: str) -> None:
    """Print a warning on standard error."""
    err().print(f"warning: {text}", style="yellow")
