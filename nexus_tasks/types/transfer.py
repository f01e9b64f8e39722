"""The receipts of exporting, importing and erasing a namespace's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nexus_tasks.types.document import Document


@dataclass(frozen=True, kw_only=True)
class TransferReceipt(Document):
    """The number of rows that an export has written or an import has read."""

    namespace: str
    file: str  # the file's path
    rows: Mapping[str, int]  # table → number of rows; tables without rows are left out

    @property
    def total(self) -> int:
        """The number of rows of all tables together."""
        return sum(self.rows.values())


@dataclass(frozen=True, kw_only=True)
class MoveReceipt(Document):
    """What moving a namespace to another cell has done."""

    namespace: str
    cell: str  # the cell that has the namespace now
    moved_from: str | None  # None: it was there already, or an unfinished move was given up
    rows: Mapping[str, int]  # table → number of rows; empty when an earlier call has copied them
    paused_seconds: float  # for which the namespace could not be written


@dataclass(frozen=True, kw_only=True)
class MarkdownExport(Document):
    """The numbers of topics and facts that were written to a folder of Markdown."""

    namespace: str
    folder: str  # the folder's path
    topics: int
    facts: int
    removed: int = 0  # number of deleted files, whose topics are gone
    kept: tuple[str, ...] = ()  # files whose topics are gone and that stay, because somebody has edited them


@dataclass(frozen=True, kw_only=True)
class MarkdownImport(Document):
    """The result of reading topics from a folder of Markdown."""

    namespace: str
    folder: str  # the folder's path
    topics: int  # number of files read
    changed: int  # number of topics that are new or differ from the stored topic
    revised: int = 0  # number of facts whose line in facts.md has another wording
    ended: tuple[int, ...] = ()  # ids of superseded facts whose lines in facts.md were edited; the edits were not read

    def _left_out(self) -> Collection[str]:
        return () if self.ended else ("ended",)


@dataclass(frozen=True, kw_only=True)
class ForgetReceipt(Document):
    """The rows and memories that an erasure deleted, and the jobs that it queued."""

    deleted: Mapping[str, int]  # table → number of deleted rows
    ids: tuple[int, ...]  # ids of the erased memories
    requeued: tuple[str, ...]  # ids of the jobs that make facts and digests again from the remaining messages
    # Tables whose files on disk may still contain the erased rows. Other transactions kept these tables in use.
    not_rewritten: tuple[str, ...] = ()

    def _left_out(self) -> Collection[str]:
        return () if self.not_rewritten else ("not_rewritten",)
