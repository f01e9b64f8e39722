"""Build a context block section by section under a hard bound of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import CitedMemory, ContextSection


@dataclass(kw_only=True)
class BudgetedBlock:
    """A block under construction. Each added line fits into its section's allowance and into ``max_tokens``."""

    max_tokens: int
    used: int = 0
    # The texts in the block. A text is added only once, although several observers may have the same text.
    said: set[str] = field(default_factory=set)
    sections: list[ContextSection] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    citations: dict[str, CitedMemory] = field(default_factory=dict)

    def section(
        self,
        title: str,
        rows: Sequence[ContextRow],
        allowance: float,
        render: Callable[[ContextRow], str],
        *,
        oldest_first: bool = False,
    ) -> float:
        """Add a section with the rows that fit, in the order given. Leave out a row whose text is in the block already.

        Args:
            allowance: tokens that the section may use.
            render: returns the text of a row.
            oldest_first: put the chosen rows in the order of the conversation.

        Returns:
            The tokens of ``allowance`` that are left.
        """
        heading = f"## {title}"
        budget = min(int(allowance), self.max_tokens - self.used) - line_tokens(heading)
        chosen: list[tuple[ContextRow, str]] = []
        spent = 0
        for row in rows:
            text = " ".join(render(row).split())
            if text in self.said:
                continue
            line = f"- [m{row.id}] {text}"
            if spent + line_tokens(line) > budget:
                # A digest may be cut, because its beginning is useful. A cut fact is useless.
                if chosen or not row.level.startswith("summary") or budget < 20:
                    continue
                line = shorten(line, 4 * (budget - 1))
            chosen.append((row, line))
            self.said.add(text)
            spent += line_tokens(line)
        if not chosen:
            return allowance
        if oldest_first:
            chosen.sort(key=lambda pair: pair[0].seq or 0)
        for row, _ in chosen:
            self.citations[f"m{row.id}"] = CitedMemory(id=row.id, external_id=row.external_id)
        tokens = spent + line_tokens(heading)
        self.lines += [heading, *(line for _, line in chosen)]
        self.sections.append(ContextSection(name=title.lower(), tokens=tokens, ids=tuple(row.id for row, _ in chosen)))
        self.used += tokens
        return allowance - tokens


def line_tokens(line: str) -> int:
    """The estimated tokens of a line with its line break."""
    return estimate_tokens(line + "\n")
