"""Text that wraps under a hanging indent, without the trailing blanks that padding leaves."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def paragraph(console: Console, text: Text | str, *, indent: int = 0, first: Text | None = None) -> None:
    """Print ``text`` wrapped ``indent`` columns from the left; ``first`` goes before its first line."""
    body = text if isinstance(text, Text) else Text(text)
    head = first or Text()
    for line in body.wrap(console, max(console.width - indent, 20)) or [Text()]:
        line.rstrip()
        head.pad_right(max(indent - head.cell_len, 0))
        console.print(head.append_text(line), soft_wrap=True)
        head = Text()
