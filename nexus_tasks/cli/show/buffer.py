"""The session buffer for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nexus_tasks.buffer import Damage
from nexus_tasks.cli.output import hint, warn
from nexus_tasks.cli.show import words
from nexus_tasks.cli.show.table import table

if TYPE_CHECKING:
    from nexus_tasks.services.buffer_flush import StoreReport


def status(found: Mapping[str, Any]) -> None:
    """How much is kept, and since when."""
    if found["entries"]:
        entries, sessions = words.count(found["entries"], "entry", "entries"), words.count(found["sessions"], "session")
        print(f"{entries} of {sessions} to store, the oldest from {words.ago(found['oldest_unacknowledged'])}.")
        print(f"{found['bytes']:,} of {found['max_bytes']:,} bytes in {found['folder']}.")
        hint("Store them now with `nexus buffer flush`; workers of this machine do it every five minutes.")
    else:
        print("The buffer is empty: everything is stored.")
    if found["quarantined"]:
        warn(f"{words.count(found['quarantined'], 'file')} in {found['folder']}/quarantine could not be stored.")


def listed(sessions: Sequence[Mapping[str, Any]]) -> None:
    """One line per session."""
    names = ("session", "agent", "entries", "bytes", "oldest_unacknowledged", "last_flush")
    titles = ("session", "agent", "entries", "bytes", "oldest", "last flush")
    table(titles, [[one[name] for name in names] for one in sessions], elastic="session", empty="The buffer is empty.")


def flushed(report: StoreReport) -> None:
    """What was stored."""
    entries = words.count(report.entries, "entry", "entries")
    print(f"Stored {words.count(report.stored, 'message')} from {entries} of the buffer.")
    if report.duplicates:
        print(f"{report.duplicates:,} were stored already.")
    _damages(report.damages)


def recovered(entries: int, damages: Sequence[Damage]) -> None:
    """What is ready to be stored."""
    print(f"{words.count(entries, 'entry', 'entries')} can be stored.")
    _damages(damages)


def _damages(damages: Sequence[Damage]) -> None:
    for damage in damages:
        where = f"{damage.agent}, session {damage.session}, {damage.segment} line {damage.line}"
        warn(f"{where}: {damage.kind}, {damage.reason}. Kept as {damage.kept_as}.")
