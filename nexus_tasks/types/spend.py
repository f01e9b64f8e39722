"""What model calls have cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class Spend(Document):
    """The model calls of one day for one purpose."""

    day: str  # of UTC, such as 2026-11-24
    purpose: str  # what the calls were for, such as derive, reflect, digest or answer
    calls: int
    failed: int  # calls whose answer could not be used; they cost money too
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_usd: float  # US dollars


@dataclass(frozen=True, kw_only=True)
class SpendReport(Document):
    """The model calls of a period by day (UTC) and purpose. A day without a call has no entry."""

    namespace: str | None  # None: all namespaces
    since: datetime
    until: datetime
    entries: tuple[Spend, ...]  # the earliest day first
    cost_usd: float  # of all entries together, US dollars
    away: Mapping[str, str] = field(default_factory=dict)  # cells that are missing in the report: cell → why

    def _left_out(self) -> Collection[str]:
        return () if self.away else ("away",)
