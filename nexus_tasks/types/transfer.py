"""The receipts of exporting, importing and erasing a namespace's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class TransferReceipt(Document):
    """What an export has written, or an import has read."""

    namespace: str
    file: str  # its path
    rows: Mapping[str, int]  # by table; tables without rows are left out

    @property
    def total(self) -> int:
        """Rows of all tables."""
        return sum(self.rows.values())


@dataclass(frozen=True, kw_only=True)
class MarkdownExport(Document):
    """What was written to a folder of Markdown."""

    namespace: str
    folder: str  # its path
    topics: int
    facts: int


@dataclass(frozen=True, kw_only=True)
class MarkdownImport(Document):
    """What was read from a folder of Markdown."""

    namespace: str
    folder: str  # its path
    topics: int  # files read
    changed: int  # topics that are new or have changed


@dataclass(frozen=True, kw_only=True)
class ForgetReceipt(Document):
    """What an erasure did."""

    deleted: Mapping[str, int]  # rows by table
    ids: tuple[int, ...]  # ids of the erased memories
    requeued: tuple[str, ...]  # ids of the jobs that derive and digest again from the messages that stay
    not_rewritten: tuple[str, ...] = ()  # tables that were too busy to be rewritten on disk

    def _left_out(self) -> Collection[str]:
        return () if self.not_rewritten else ("not_rewritten",)
