"""Build a context block under a hard bound of tokens. Sections may be filled in any order, and are shown in theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nexus_tasks.storage.searching.context_rows import ContextRow
from nexus_tasks.text import estimate_tokens, shorten
from nexus_tasks.types import CitedMemory, ContextSection

_LEAST_CUT = 20  # tokens; a digest that is cut to fewer tokens says too little


@dataclass(kw_only=True)
class BudgetedBlock:
    """A block under construction. Each added line fits into its section's allowance and into ``max_tokens``."""

    max_tokens: int
    used: int = 0
    # The texts in the block. A text is added only once, although several observers may have the same text.
    said: set[str] = field(default_factory=set)
    sections: list[Section] = field(default_factory=list)

    @property
    def left(self) -> int:
        """The tokens that are not used yet."""
        return self.max_tokens - self.used

    def section(self, title: str, render: Callable[[ContextRow], str]) -> Section:
        """Add an empty section. Sections are shown in the order in which they were added, without the empty ones.

        Args:
            render: returns the text of a row.
        """
        self.sections.append(Section(block=self, title=title, render=render))
        return self.sections[-1]

    def lines(self) -> list[str]:
        """The block's lines: each section's heading and its lines."""
        return [line for section in self._filled() for line in (section.heading, *section.rows.values())]

    def shown(self) -> tuple[ContextSection, ...]:
        """The sections that have lines."""
        return tuple(
            ContextSection(name=section.title.lower(), tokens=section.used, ids=tuple(section.rows))
            for section in self._filled()
        )

    def citations(self) -> dict[str, CitedMemory]:
        """The memories that the lines cite."""
        return {
            f"m{row.id}": CitedMemory(id=row.id, external_id=row.external_id)
            for section in self._filled()
            for row in section.chosen
        }

    def _filled(self) -> list[Section]:
        return [section for section in self.sections if section.chosen]


@dataclass(kw_only=True)
class Section:
    """A section of a block under construction: memories, and one line for each."""

    block: BudgetedBlock
    title: str
    render: Callable[[ContextRow], str]
    used: int = 0  # tokens, with the heading
    chosen: list[ContextRow] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)  # memory id → line

    @property
    def heading(self) -> str:
        """The line above the section."""
        return f"## {self.title}"

    def fill(self, rows: Iterable[ContextRow], allowance: float) -> None:
        """Add each of ``rows`` that fits, in this order, until the section uses ``allowance`` tokens."""
        for row in rows:
            self.add(row, allowance)

    def add(self, row: ContextRow, allowance: float) -> bool:
        """Add a row if it fits. Returns whether the block has the row's text now.

        A text that the block has already is not added again.

        Args:
            allowance: tokens that the whole section may use.
        """
        if row.unread:
            return False
        # A fact in the profile is not told again below it, although the lines there have dates.
        said = " ".join(f"{row.subject}: {row.content}".split())
        if said in self.block.said:
            return True
        if self.is_too_long(row, allowance):  # rendering it would take longer
            return False
        heading, room = self._heading_tokens, self.room(allowance)
        text = " ".join(self.render(row).split())
        line = f"- [m{row.id}] {text}"
        if line_tokens(line) > room:
            # A digest may be cut, because its beginning is useful. A cut fact is useless.
            if self.chosen or not row.level.startswith("summary") or room < _LEAST_CUT:
                return False
            line = shorten(line, 4 * (room - 1))
        self.chosen.append(row)
        self.rows[row.id] = line
        self.block.said.add(said)
        self.used += heading + line_tokens(line)
        self.block.used += heading + line_tokens(line)
        return True

    def is_too_long(self, row: ContextRow, allowance: float) -> bool:
        """Whether a row's content alone does not fit. Most rows come when the block is nearly full."""
        if row.unread or row.level.startswith("summary"):
            return row.unread
        room = 4 * self.room(allowance)
        return len(row.content) >= room and len(" ".join(row.content.split())) >= room

    def room(self, allowance: float) -> int:
        """The tokens for one more line."""
        return min(int(allowance) - self.used, self.block.left) - self._heading_tokens

    @property
    def _heading_tokens(self) -> int:
        return 0 if self.chosen else line_tokens(self.heading)

    def sort(self, key: Callable[[ContextRow], tuple[float, ...]]) -> None:
        """Sort the section's lines."""
        self.chosen.sort(key=key)
        self.rows = {row.id: self.rows[row.id] for row in self.chosen}


def line_tokens(line: str) -> int:
    """The estimated tokens of a line with its line break."""
    return estimate_tokens(line + "\n")
