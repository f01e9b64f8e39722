"""Counting the buffer's entries, bytes and quarantined files, mostly from the names and sizes of the files."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from nexus_tasks.buffer.places import QUARANTINE, SESSIONS, belongs_to, is_open, sealed_range
from nexus_tasks.buffer.segment import read
from nexus_tasks.buffer.session import FLUSHED, SessionFiles

_LOOKS = 10  # at the files of a session, while other processes rename and delete them


def session_stats(files: SessionFiles) -> dict[str, Any]:
    """The figures of one session, with the keys of :meth:`nexus_tasks.buffer.buffer.SessionBuffer.status`."""
    entries, size, oldest, last_flush = 0, 0, None, None
    for _ in range(_LOOKS):
        try:
            entries, size, oldest, last_flush = _counted(files.folder)
            break
        except FileNotFoundError:  # another process seals (renames) or deletes a segment, or deletes the session
            continue
    return {
        "agent": files.agent,
        "session": files.session,
        "deployment": files.deployment,
        "started_at": files.started_at,
        "entries": entries,
        "last_flush": last_flush,
        "bytes": size,
        "oldest_unacknowledged": oldest,
    }


def _counted(folder: str) -> tuple[int, int, float | None, float | None]:
    """The entries of a session, their bytes, the time of the oldest one, and the time of the last flush.

    Raises:
        FileNotFoundError: a file that was listed is there no more under this name. Its entries may be there.
    """
    entries, size, oldest, last_flush = 0, 0, None, None
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if item.name == FLUSHED:
            last_flush = item.stat().st_mtime
        elif item.name.endswith(".sealed"):
            first, last = sealed_range(item.name)
            entries, size = entries + last - first + 1, size + item.stat().st_size
        elif is_open(item.name):
            with open(item.path, "rb") as file:
                entries, size = entries + file.read().count(b"\n"), size + item.stat().st_size
        else:
            continue
        if oldest is None and item.name != FLUSHED:
            oldest = _first_time(item.path)
    return entries, size, oldest, last_flush


def _first_time(path: str) -> float | None:
    with open(path, "rb") as file:
        found, _ = read(file.readline())
    return found[0].time if found else None


def has_pending_entries(folder: str, deployment: str) -> bool:
    """Whether the buffer's folder holds an entry for this deployment that is not acknowledged.

    An entry is acknowledged when it is stored in Postgres and its segment is deleted.
    """
    with suppress(FileNotFoundError):
        for session in os.scandir(os.path.join(folder, SESSIONS)):
            if not session.name.startswith(".") and belongs_to(session.name, deployment):
                with suppress(FileNotFoundError, NotADirectoryError):
                    try:
                        items = os.scandir(session.path)
                    except PermissionError:
                        return True  # another user's folder, of which `recover` tells
                    for item in items:
                        if item.name.endswith(".sealed") or (is_open(item.name) and _has_bytes(item)):
                            return True
    return False


def _has_bytes(segment: os.DirEntry[str]) -> bool:
    """Whether an open segment has bytes. One that is gone had some: another process has sealed it at this moment."""
    try:
        return segment.stat().st_size > 0
    except FileNotFoundError:
        return True


def backlog(folder: str, deployment: str) -> tuple[int, float]:
    """The bytes of this deployment's entries that are not acknowledged, and when the oldest file of them was written.

    The time is in seconds since the epoch, or 0 without an entry.
    """
    size, oldest = 0, 0.0
    with suppress(FileNotFoundError):
        for session in os.scandir(os.path.join(folder, SESSIONS)):
            if not session.name.startswith(".") and belongs_to(session.name, deployment):
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    for item in os.scandir(session.path):
                        waits = item.name.endswith(".sealed") or is_open(item.name)
                        if waits and (found := item.stat()).st_size:
                            size += found.st_size
                            oldest = min(oldest or found.st_mtime, found.st_mtime)
    return size, oldest


def count_quarantined(folder: str) -> int:
    """The number of files and folders in quarantine."""
    with suppress(FileNotFoundError):
        return len(os.listdir(os.path.join(folder, QUARANTINE)))
    return 0


def total_bytes(folder: str) -> int:
    """The sum of the sizes of all files under ``folder``, in bytes. Folders of another user do not count."""
    total = 0
    with suppress(FileNotFoundError, PermissionError):
        for item in os.scandir(folder):
            with suppress(FileNotFoundError):
                total += total_bytes(item.path) if item.is_dir(follow_symlinks=False) else item.stat().st_size
    return total
