"""Show the progress of long work on standard error. A terminal shows a bar. A log gets one line every 5 s."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from nexus_tasks.cli.output import err

_LINE_EVERY = 5.0  # seconds


class Meter(Protocol):
    """Shows the progress of some work."""

    def at(self, done: int, total: int, note: str = "") -> None:
        """Show ``done`` of ``total``, and a ``note``."""
        ...

    def warn(self, text: str) -> None:
        """Print a warning above the progress."""
        ...


@contextmanager
def meter(label: str) -> Iterator[Meter]:
    """A meter for the work in the ``with`` block. ``label`` is the word before the numbers, such as ``stored``."""
    console = err()
    if console.is_terminal:
        with _bar(console) as progress:
            yield _Bar(progress, label)
    else:
        lines = _Lines(console, label)
        yield lines
        lines.close()


def _bar(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False, style="dim", table_column=Column(no_wrap=True, ratio=1)),
    )
    return Progress(*columns, console=console, transient=True)


class _Bar:
    def __init__(self, progress: Progress, label: str) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=1, note="", visible=False)

    def at(self, done: int, total: int, note: str = "") -> None:
        self.progress.update(self.task, completed=done, total=total, note=note, visible=True)

    def warn(self, text: str) -> None:
        self.progress.console.print(f"warning: {text}", style="yellow")


class _Lines:
    def __init__(self, console: Console, label: str) -> None:
        self.console, self.label = console, label
        self.printed, self.latest, self.due = "", "", 0.0

    def at(self, done: int, total: int, note: str = "") -> None:
        self.latest = f"{self.label} {done:,} of {total:,}" + (f", {note}" if note else "")
        if time.monotonic() >= self.due:
            self.close()
            self.due = time.monotonic() + _LINE_EVERY

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}")

    def close(self) -> None:
        if self.latest != self.printed:
            self.console.print(self.latest)
            self.printed = self.latest
