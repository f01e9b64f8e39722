"""``nexus buffer``: what this machine keeps until Postgres has it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from nexus_tasks.cli.connect import start_logging
from nexus_tasks.cli.options import Json
from nexus_tasks.cli.output import emit

if TYPE_CHECKING:
    from nexus_tasks.buffer import SessionBuffer

app = typer.Typer(help="What this machine keeps until Postgres has it.", no_args_is_help=True)


def _buffer() -> SessionBuffer:
    start_logging()
    from nexus_tasks.buffer import SessionBuffer
    from nexus_tasks.settings import load_settings

    settings = load_settings()
    return SessionBuffer(settings.home / "buffer", fsync=settings.buffer_fsync, max_bytes=settings.buffer_max_bytes)


def _sessions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {name: _moment(one[name]) for name in ("started_at", *_TIMES)} for one in found]


_TIMES = ("last_flush", "oldest_unacknowledged")


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@app.command()
def status(json: Json = False) -> None:
    """Show how much is kept, since when, and what is in quarantine."""
    buffer = _buffer()
    found = _sessions(buffer.status())
    waiting = [one for one in found if one["entries"]]
    document = {
        "folder": buffer.folder,
        "fsync": buffer.fsync,
        "entries": sum(one["entries"] for one in found),
        "bytes": sum(one["bytes"] for one in found),
        "max_bytes": buffer.max_bytes,
        "sessions": len(waiting),
        "oldest_unacknowledged": min(
            (one["oldest_unacknowledged"] or one["started_at"] for one in waiting), default=None
        ),
        "quarantined": buffer.quarantined(),
    }
    if json:
        emit(document)
        return
    from nexus_tasks.cli.show import buffer as show

    show.status(document)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the sessions of this machine's buffer."""
    buffer = _buffer()
    found = _sessions(buffer.status())
    if json:
        emit({"folder": buffer.folder, "sessions": found})
        return
    from nexus_tasks.cli.show import buffer as show

    show.listed(found)


@app.command()
def flush(json: Json = False) -> None:
    """Store everything now. Stored entries are deleted from the buffer; what cannot be stored goes to quarantine."""
    start_logging()
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.services import buffer_flush

    report = buffer_flush.store_buffer(default_deployment(), wait=True)
    if json:
        emit(asdict(report) | {"damages": [damage._asdict() for damage in report.damages]})
        return
    from nexus_tasks.cli.show import buffer as show

    show.flushed(report)


@app.command()
def recover(json: Json = False) -> None:
    """Look for what a crash has left: torn and corrupt lines are set aside, the rest is ready to be stored."""
    recovery = _buffer().recover()
    entries = sum(len(segment.entries) for segment in recovery.segments)
    damages = [damage._asdict() for damage in recovery.damages]
    if json:
        emit({"entries": entries, "segments": len(recovery.segments), "damages": damages})
        return
    from nexus_tasks.cli.show import buffer as show

    show.recovered(entries, recovery.damages)
