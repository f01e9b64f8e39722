"""Print tables and wrapped paragraphs. In a pipe, a table becomes tab-separated values, and no value is cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nexus_tasks.cli import words
from nexus_tasks.cli.output import out
from nexus_tasks.types import iso

Cell: TypeAlias = str | int | float | datetime | None

_GAP, _NARROWEST = 2, 8  # characters


def table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, elastic: str, empty: str) -> None:
    """Print rows as a table on a terminal. In a pipe, print tab-separated lines, the titles first.

    Args:
        titles: the titles of the columns.
        rows: the cells of each row.
        elastic: the title of the column whose cells are cut when the table is wider than the terminal.
        empty: the text that a terminal shows when there are no rows.
    """
    console = out()
    if not sys.stdout.isatty():
        print("\t".join(title or "-" for title in titles))
        for row in rows:
            print("\t".join(_full(cell) for cell in row))
    elif rows:
        console.print(_rich_table(titles, rows, elastic, console.width))
    else:
        console.print(empty, style="dim")


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], elastic: str, space: int) -> Table:
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


def paragraph(console: Console, text: Text | str, *, indent: int = 0, first: Text | None = None) -> None:
    """Print ``text`` in wrapped lines that are indented by ``indent`` columns. ``first`` begins the first line."""
    body = text if isinstance(text, Text) else Text(text)
    head = first or Text()
    for line in body.wrap(console, max(console.width - indent, 20)) or [Text()]:
        line.rstrip()
        head.pad_right(max(indent - head.cell_len, 0))
        console.print(head.append_text(line), soft_wrap=True)
        head = Text()
