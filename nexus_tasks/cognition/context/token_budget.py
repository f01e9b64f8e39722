"""The block as it grows: sections of cited lines, under a hard bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import ContextSection


@dataclass(kw_only=True)
class Sheet:
    """The block as it grows; a line goes in only when it fits under its section's allowance and the whole bound."""

    max_tokens: int
    used: int = 0
    said: set[str] = field(default_factory=set)  # what stands in it: several observers may hold the same
    sections: list[ContextSection] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    citations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def section(
        self,
        title: str,
        rows: Sequence[ContextRow],
        allowance: float,
        render: Callable[[ContextRow], str],
        *,
        oldest_first: bool = False,
    ) -> float:
        """Add a section of as many rows as fit, the first ones first; returns what is left of ``allowance`` tokens."""
        heading = f"## {title}"
        budget = min(int(allowance), self.max_tokens - self.used) - cost(heading)
        chosen: list[tuple[ContextRow, str]] = []
        spent = 0
        for row in rows:
            told = " ".join(render(row).split())
            if told in self.said:
                continue
            line = f"- [m{row.id}] {told}"
            if spent + cost(line) > budget:
                # A digest is worth its beginning; a fact cut in half is worth nothing.
                if chosen or not row.level.startswith("summary") or budget < 20:
                    continue
                line = shorten(line, 4 * (budget - 1))
            chosen.append((row, line))
            self.said.add(told)
            spent += cost(line)
        if not chosen:
            return allowance
        if oldest_first:
            chosen.sort(key=lambda pair: pair[0].seq or 0)
        for row, _ in chosen:
            self.citations[f"m{row.id}"] = {"id": row.id, "external_id": row.external_id}
        tokens = spent + cost(heading)
        self.lines += [heading, *(line for _, line in chosen)]
        self.sections.append(ContextSection(name=title.lower(), tokens=tokens, ids=tuple(row.id for row, _ in chosen)))
        self.used += tokens
        return allowance - tokens


def cost(line: str) -> int:
    """Tokens of a line with its line break, estimated."""
    return estimate_tokens(line + "\n")
