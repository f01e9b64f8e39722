"""``nexus buffer``: show, store and recover the messages that this machine keeps until Postgres stores them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nexus_tasks.cli import words
from nexus_tasks.cli.connect import connect, start_logging
from nexus_tasks.cli.layout import table
from nexus_tasks.cli.options import Json, Offset, PageLimit
from nexus_tasks.cli.output import emit, hint, say, warn
from nexus_tasks.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from nexus_tasks.buffer import Damage, Entry, SessionBuffer
    from nexus_tasks.services.buffer_flush import StoreReport

app = typer.Typer(help="Messages that this machine keeps until they are stored in Postgres.", no_args_is_help=True)


def _buffer() -> SessionBuffer:
    """The buffer of the deployment.

    Raises:
        ConfigurationError: there are several cells, each with its entries, and perhaps with a home of its own.
    """
    start_logging()
    from nexus_tasks.endpoints import buffer_of
    from nexus_tasks.settings import load_settings, refuse_several

    settings = load_settings()
    refuse_several(settings)
    return buffer_of(settings)


def _allowed() -> tuple[str, ...] | None:
    """The namespaces whose entries this process may see. ``None`` means every namespace."""
    from nexus_tasks.settings import load_settings

    return load_settings().namespaces


def _may_see(namespace: str) -> bool:
    allowed = _allowed()
    return allowed is None or namespace in allowed


def _sessions(buffer: SessionBuffer) -> list[dict[str, Any]]:
    return [session for session in buffer.status() if _may_see(session["agent"])]


_TIMES = ("started_at", "last_flush", "oldest_unacknowledged")


def _with_datetimes(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [session | {name: _datetime(session[name]) for name in _TIMES} for session in sessions]


def _datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@app.command()
def status(json: Json = False) -> None:
    """Show how many entries are kept, since when, and how many files are in quarantine."""
    buffer = _buffer()
    sessions = _with_datetimes(_sessions(buffer))
    own = [session for session in sessions if session["deployment"] in ("", buffer.deployment)]
    waiting = [session for session in own if session["entries"]]
    document = {
        "folder": buffer.folder,
        "fsync": buffer.fsync,
        "deployment": buffer.deployment,
        "entries": sum(session["entries"] for session in own),
        "bytes": sum(session["bytes"] for session in sessions),
        "max_bytes": buffer.max_bytes,
        "sessions": len(waiting),
        "oldest_unacknowledged": min(
            (session["oldest_unacknowledged"] or session["started_at"] for session in waiting), default=None
        ),
        "quarantined": buffer.quarantined() if _allowed() is None else len(_quarantine(buffer)),
        "other_deployments": _figures_of_others(sessions, buffer.deployment),
    }
    if json:
        emit(document)
    else:
        _print_status(document)


def _figures_of_others(sessions: Sequence[Mapping[str, Any]], own: str) -> list[dict[str, Any]]:
    """The numbers of entries and sessions of each other deployment that has entries."""
    waiting = [session for session in sessions if session["entries"] and session["deployment"] not in ("", own)]
    return [
        {
            "deployment": name,
            "entries": sum(session["entries"] for session in waiting if session["deployment"] == name),
            "sessions": sum(session["deployment"] == name for session in waiting),
        }
        for name in sorted({session["deployment"] for session in waiting})
    ]


@app.command("list")
def list_(limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List the sessions of this machine's buffer."""
    buffer = _buffer()
    sessions = _with_datetimes(_sessions(buffer))[offset : offset + limit]
    if json:
        emit({"folder": buffer.folder, "sessions": sessions})
    else:
        _print_sessions(sessions)


@app.command()
def flush(
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Store the entries of this other deployment here, for example after its database has moved.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Store the buffer in Postgres now. Stored entries leave the buffer, and refused entries go to quarantine.

    Entries belong to the deployment that buffered them. `nexus buffer status` names it. Without NEXUS_CELL the entries
    of all cells are stored.
    """
    from nexus_tasks.deployment import default_deployment
    from nexus_tasks.services import buffer_flush
    from nexus_tasks.services.cells import buffers

    cells = connect().cells if of is None and _allowed() is None else None
    if cells is not None:
        report = buffers.store_all(cells, wait=True)
    else:
        buffer = _buffer()
        if of is not None:
            if of not in {session["deployment"] for session in _sessions(buffer)}:
                raise NotFound(
                    f"The buffer has no entries of a deployment {of!r}.",
                    remedy="Take a name from `nexus buffer status`.",
                )
            buffer = buffer.of(of)
        report = buffer_flush.store_buffer(default_deployment(), wait=True, buffer=buffer, allowed=_allowed())
    if json:
        emit(asdict(report) | {"damages": [damage._asdict() for damage in report.damages]})
    else:
        _print_flushed(report)


@app.command()
def recover(json: Json = False) -> None:
    """Recover after a crash. Unfinished and corrupt lines go to quarantine. All other entries can then be stored."""
    recovery = _buffer().recover()
    segments = [segment for segment in recovery.segments if _may_see(segment.agent)]
    entries = sum(len(segment.entries) for segment in segments)
    damages = [damage for damage in recovery.damages if _may_see(damage.agent)]
    if json:
        emit({"entries": entries, "segments": len(segments), "damages": [damage._asdict() for damage in damages]})
    else:
        _print_recovered(entries, damages)


@app.command()
def clear(
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NS", help="Only the entries of this namespace.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="KEY", help="Only the entries of the sessions with this key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    json: Json = False,
) -> None:
    """Delete entries that are not stored yet. Their messages are lost. Stored messages and the quarantine stay."""
    buffer = _buffer()

    def chosen(agent: str, key: str) -> bool:
        return _may_see(agent) and namespace in (None, agent) and session in (None, key)

    own = (one for one in _sessions(buffer) if one["deployment"] in ("", buffer.deployment))
    if not (namespace is session is None or any(chosen(one["agent"], one["session"]) for one in own)):
        raise NotFound("The buffer has no such session.", remedy="See `nexus buffer list`.")
    # Only these segments are deleted: an entry that arrives during the question was not in it.
    recovery = buffer.recover(None if namespace is None else {namespace})
    lost = [segment for segment in recovery.segments if chosen(segment.agent, segment.session)]
    entries = sum(len(segment.entries) for segment in lost)
    sessions = len({(segment.agent, segment.session) for segment in lost})
    of = words.count(sessions, "session")
    if entries and not yes:
        waiting = f"{words.count(entries, 'entry', 'entries')} of {of} {'is' if entries == 1 else 'are'} not stored yet"
        if json or not sys.stdin.isatty():
            raise InvalidInput(
                f"{waiting} and would be lost.",
                remedy="Store them with `nexus buffer flush`, or delete them with `nexus buffer clear --yes`.",
            )
        typer.confirm(f"{waiting}. Delete {'it' if entries == 1 else 'them'}? Their messages are lost.", abort=True)
    deleted = buffer.acknowledge(lost)  # a worker may have stored some of them meanwhile
    if json:
        emit({"entries": deleted, "sessions": sessions})
    else:
        print(f"{words.count(deleted, 'entry', 'entries')} of {of} deleted.")
        _warn_of_damages([damage for damage in recovery.damages if chosen(damage.agent, damage.session)])


@app.command()
def quarantine(limit: PageLimit = 100, offset: Offset = 0, json: Json = False) -> None:
    """List the entries and lines that could not be stored, and why."""
    rows: list[dict[str, Any]] = [
        {
            "file": os.path.basename(damage.kept_as),
            "kind": damage.kind,
            "agent": damage.agent,
            "session": damage.session,
            "reason": damage.reason,
            "releasable": entry is not None,
            "kept_as": damage.kept_as,
        }
        for damage, entry in _quarantine(_buffer())[offset : offset + limit]
    ]
    if json:
        emit(rows)
        return
    names = ("kind", "agent", "session", "reason", "file")
    table(names, [[row[name] for name in names] for row in rows], elastic="reason", empty="The quarantine is empty.")
    if any(row["releasable"] for row in rows):
        hint("Refused entries are tried again with `nexus buffer release --all`, for example after an upgrade.")


def _quarantine(buffer: SessionBuffer) -> list[tuple[Damage, Entry | None]]:
    return [pair for pair in buffer.quarantine() if _may_see(pair[0].agent)]


@app.command()
def release(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A file's name, from `nexus buffer quarantine`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every refused entry of this deployment.")] = False,
    json: Json = False,
) -> None:
    """Put refused entries back into the buffer, for example after an upgrade. The next flush tries to store them."""
    if (file is not None) == everything:
        raise typer.BadParameter("give either FILE or --all")
    buffer = _buffer()
    from nexus_tasks.services import buffer_flush

    count = buffer_flush.release(buffer, file, allowed=_allowed())
    buffer.close()
    if json:
        emit({"released": count})
    else:
        print(f"{words.count(count, 'entry', 'entries')} put back.")
        hint("Store them now with `nexus buffer flush`.")


# --- output for people -----------------------------------------------------------------------------------------------
def _print_status(found: Mapping[str, Any]) -> None:
    if found["entries"]:
        entries, sessions = words.count(found["entries"], "entry", "entries"), words.count(found["sessions"], "session")
        print(f"{entries} of {sessions} to store, the oldest from {words.ago(found['oldest_unacknowledged'])}.")
        say(f"{found['bytes']:,} of {found['max_bytes']:,} bytes in {found['folder']}.")
        hint("Store them now with `nexus buffer flush`; workers of this machine do it every five minutes.")
    else:
        others = found["other_deployments"]
        print("No entry is to be stored here." if others else "The buffer is empty: everything is stored.")
    for other in found["other_deployments"]:
        entries, sessions = words.count(other["entries"], "entry", "entries"), words.count(other["sessions"], "session")
        warn(
            f"{entries} of {sessions} belong to the deployment {other['deployment']}. A command or worker with its"
            f" NEXUS_DATABASE_URL stores them. If this deployment ({found['deployment']}) takes its place, run"
            f" `nexus buffer flush --of {other['deployment']}`."
        )
    if found["quarantined"]:
        warn(f"{words.count(found['quarantined'], 'file')} in {found['folder']}/quarantine could not be stored.")
        hint("`nexus buffer quarantine` says why.")


def _print_sessions(sessions: Sequence[Mapping[str, Any]]) -> None:
    names = ("session", "agent", "deployment", "entries", "bytes", "oldest_unacknowledged", "last_flush")
    titles = ("session", "agent", "deployment", "entries", "bytes", "oldest", "last flush")
    table(titles, [[one[name] for name in names] for one in sessions], elastic="session", empty="The buffer is empty.")


def _print_flushed(report: StoreReport) -> None:
    entries = words.count(report.entries, "entry", "entries")
    print(f"Stored {words.count(report.stored, 'message')} from {entries} of the buffer.")
    if report.duplicates:
        print(f"{words.count(report.duplicates, 'was', 'were')} stored already.")
    if report.unknown:
        waiting = words.count(report.unknown, "entry waits", "entries wait")
        warn(f"{waiting} for a newer release: this one does not know their type.")
    if report.elsewhere:
        warn(f"{words.count(report.elsewhere, 'entry stays', 'entries stay')}: the namespace moves to another cell.")
    for namespace, number in report.locked.items():
        stay = words.count(number, "entry stays", "entries stay")
        warn(f"{stay}: another command, such as an import, keeps {namespace} locked. Flush again when it has ended.")
    _warn_of_damages(report.damages)


def _print_recovered(entries: int, damages: Sequence[Damage]) -> None:
    print(f"{words.count(entries, 'entry', 'entries')} can be stored.")
    _warn_of_damages(damages)


def _warn_of_damages(damages: Sequence[Damage]) -> None:
    for damage in damages:
        if damage.kind == "unreadable":
            warn(f"{damage.kept_as} stays where it is: {damage.reason}. Give yourself access to it, and try again.")
            continue
        where = f"{damage.agent}, session {damage.session}, {damage.segment} line {damage.line}"
        warn(f"{where}: {damage.kind}, {damage.reason}. Kept as {damage.kept_as}.")
