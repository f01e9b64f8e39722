"""Show the progress of long work on standard error. A terminal shows a bar. A log gets one line every 5 s.

The clock goes on while the work stands still: rich draws the bar again by itself, and a thread prints the log's lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from nexus_tasks.cli.output import err

LINE_EVERY = 5.0  # seconds


class Meter(Protocol):
    """Shows the progress of some work."""

    def at(self, done: int, total: int | None, note: str = "") -> None:
        """Show ``done`` of ``total``, and a ``note``: what runs, and what waits. ``None``: the total is not known."""
        ...

    def warn(self, text: str) -> None:
        """Print a warning above the progress."""
        ...


@contextmanager
def meter(label: str) -> Iterator[Meter]:
    """A meter for the work in the ``with`` block. ``label`` is the word before the numbers, such as ``stored``."""
    console = err()
    if console.is_terminal:
        with _Bars(*_columns(), console=console, transient=True) as progress:
            yield _Bar(progress, label)
        return
    lines = _Lines(console, label)
    try:
        yield lines
    finally:
        lines.close()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show ``text`` and a clock during the ``with`` block. A log gets a line after 5 s, and then every 5 s."""
    with meter(text) as shown:
        shown.at(0, None)
        yield


@contextmanager
def explain_interrupt(explanation: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C in the ``with`` block, print what goes on without the command. The command then exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        err().print(f"Interrupted. {explanation()}", style="yellow")
        raise


def clock(seconds: float) -> str:
    """A time as ``0:01:05``: hours, minutes, seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        _Count(),
        _Clock(),
    )


class _Count(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f}")


class _Clock(ProgressColumn):
    """The time since the start. The clock of rich stands still when all is counted, although jobs may be left."""

    def render(self, task: Task) -> RenderableType:
        return Text(clock(time.monotonic() - task.fields["began"]), style="dim")


class _Bars(Progress):
    """Shows the note on a line of its own, because 80 columns have no room for it beside the bar."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if task.visible and task.fields["note"]:
                yield Text(f"  {task.fields['note']}", style="dim", no_wrap=True, overflow="ellipsis")


class _Bar:
    def __init__(self, progress: Progress, label: str) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=None, note="", visible=False, began=time.monotonic())

    def at(self, done: int, total: int | None, note: str = "") -> None:
        self.progress.update(self.task, completed=done, total=total, note=note, visible=True)

    def warn(self, text: str) -> None:
        self.progress.console.print(f"warning: {text}", style="yellow")


class _Lines:
    def __init__(self, console: Console, label: str) -> None:
        self.console, self.label = console, label
        self.began = time.monotonic()
        self.printed, self.latest = "", ""
        self.lock = threading.Lock()
        self.closed = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def at(self, done: int, total: int | None, note: str = "") -> None:
        first = not self.latest
        numbers = "" if total is None else f" {done:,} of {total:,}"
        self.latest = f"{self.label}{numbers}{f', {note}' if note else ''}"
        if first and total is not None:
            self._print()

    def warn(self, text: str) -> None:
        with self.lock:
            self.console.print(f"warning: {text}")

    def close(self) -> None:
        self.closed.set()
        if self.printed and self.latest != self.printed:
            self._print()

    def _tick(self) -> None:
        while not self.closed.wait(LINE_EVERY):
            if self.latest:
                self._print()

    def _print(self) -> None:
        with self.lock:
            self.printed = self.latest
            self.console.print(f"{self.printed} ({clock(time.monotonic() - self.began)})")
