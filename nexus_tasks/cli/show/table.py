"""Tables: aligned columns for a person's terminal, tab-separated full values for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from rich.cells import cell_len
from rich.table import Table

from nexus_tasks.cli.output import iso, out
from nexus_tasks.cli.show import words

Cell: TypeAlias = str | int | float | datetime | None

_GAP, _NARROWEST = 2, 8  # characters


def table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, elastic: str, empty: str) -> None:
    """Print rows under their titles; the column titled ``elastic`` gives way when the line is too short for all."""
    console = out()
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_full(cell) for cell in row))
    elif rows:
        console.print(_drawn(titles, rows, elastic, console.width))
    else:
        console.print(empty, style="dim")


def _drawn(titles: Sequence[str], rows: Sequence[Sequence[Cell]], elastic: str, space: int) -> Table:
    texts = [[_short(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(titles, *texts, strict=True)]
    missing = max(sum(widths) + _GAP * (len(widths) - 1) - space, 0)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold dim")
    for title, width, first in zip(titles, widths, rows[0], strict=True):
        drawn.add_column(
            title,
            justify="right" if isinstance(first, int | float) else "left",
            width=max(width - missing, _NARROWEST) if title == elastic else width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in texts:
        drawn.add_row(*row)
    return drawn


def _short(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, datetime):
        return words.ago(cell)
    return f"{cell:,}" if isinstance(cell, int) else words.line(str(cell))


def _full(cell: Cell) -> str:
    if cell is None:
        return ""
    return iso(cell) if isinstance(cell, datetime) else words.line(str(cell))
