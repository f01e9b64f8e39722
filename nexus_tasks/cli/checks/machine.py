"""Checks of this machine: Python, the home folder, and the servers and embedder that the settings choose."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nexus_tasks.buffer import SessionBuffer
from nexus_tasks.cli.checks.check import Check, failed, passed
from nexus_tasks.embedded import account
from nexus_tasks.errors import BufferError, Transient
from nexus_tasks.mistyped_settings import mistyped_settings
from nexus_tasks.settings import Settings, mask_url

_OLDEST = (3, 11)
_FREE_BYTES, _FREE_SHARE = 1e9, 0.1  # with less than either free, a disk is nearly full
_EMBEDDER_SECONDS = 10.0  # within which an embedder's server has to answer; chosen by hand
_BUFFER_SECONDS = 3_600  # workers store the buffer every 5 minutes
_OTHERS_SECONDS = 600  # two such times, so that another deployment's workers have stored its entries


def python() -> Check:
    """Check that this Python version is supported."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] >= _OLDEST:
        return passed("python", found)
    return failed("python", found, "Use Python 3.11 or later.")


def mistyped() -> list[Check]:
    """A failed check for each ``NEXUS_*`` variable that is nearly the name of a setting.

    A variable that is far from every setting may belong to other software, so its check passes.
    """
    return [
        failed("variable", f"{one.name} is no setting and is ignored", f"Did you mean {one.meant}?")
        if one.meant
        else passed("variable", str(one))
        for one in mistyped_settings()
    ]


def home(settings: Settings) -> Check:
    """Check that the home folder belongs to this user, and that the folder is not open to other users.

    A missing folder passes the check, because the servers make the folder when they start.
    """
    path = settings.home.expanduser()
    try:
        status = path.stat()
    except FileNotFoundError:
        return passed("home", f"{path} is made when it is needed")
    except OSError as error:
        return failed("home", f"{path}: {error.strerror}", "Set NEXUS_HOME to a folder of your own.")
    mode = stat.S_IMODE(status.st_mode)
    found = f"{path}, mode {mode:04o}"
    if status.st_uid != os.geteuid():
        return failed("home", f"{found}, of another user", "Set NEXUS_HOME to a folder of your own.")
    if mode & stat.S_ISVTX:  # such as /tmp: closing it would lock out every other program
        return failed("home", f"{found}, shared by all users", "Set NEXUS_HOME to a folder of your own.")
    # The group may enter the folder. When root starts the embedded Postgres, Postgres runs as another user, and this
    # user must reach the data folder inside the home folder.
    if mode & 0o027 or not os.access(path, os.W_OK | os.X_OK):
        return failed("home", found, f"Close it to others: `{_closing(settings, path)}`.")
    return passed("home", found)


def _closing(settings: Settings, path: Path) -> str:
    """The command that closes the home folder. Without a way to its files, an embedded Postgres that runs would end."""
    if settings.embedded and os.geteuid() == 0:
        return f"chgrp {account.NAME} {shlex.quote(str(path))} && chmod 0710 {shlex.quote(str(path))}"
    return f"chmod 0700 {shlex.quote(str(path))}"


def disk(settings: Settings) -> Check:
    """Check that the disk of the home folder has room: for the session buffer, and for the embedded servers."""
    path = settings.home.expanduser()
    while not _is_there(path):
        path = path.parent
    usage = shutil.disk_usage(path)
    found = f"{usage.free / 1e9:,.1f} of {usage.total / 1e9:,.1f} GB free at {path}"
    if usage.free >= min(_FREE_BYTES, _FREE_SHARE * usage.total):
        return passed("disk", found)
    return failed("disk", found, f"Free space on the disk of {path}, or set NEXUS_HOME to a folder on another disk.")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the path is too long, or leads through a folder that is closed to this user
        return False


def buffer(settings: Settings) -> Sequence[Check]:
    """Check that the session buffer of this machine is stored soon, and has no entry that cannot be stored.

    Raises:
        NexusError: the buffer's folder cannot be read.
    """
    from nexus_tasks.endpoints import buffer_of

    kept = buffer_of(settings)
    size, oldest = kept.backlog()
    age = time.time() - oldest if size else 0.0
    found = f"{size / 1e6:,.1f} MB wait since {age:,.0f} s" if size else "empty"
    if age > _BUFFER_SECONDS:
        return [failed("buffer", found, "Store it with `nexus buffer flush`, which says what is in the way.")]
    if aside := kept.quarantined():
        remedy = (
            "See them with `nexus buffer quarantine`. `nexus buffer release --all` tries the whole ones again. Delete"
            f" the others by hand, in {kept.folder}/quarantine."
        )
        return [failed("buffer", f"{aside:,} entries could not be stored", remedy)]
    return [_others(kept) or passed("buffer", found)]


def _others(kept: SessionBuffer) -> Check | None:
    """Report entries that another deployment has buffered, or this one when its database had another address."""
    oldest: dict[str, float] = {}
    try:
        sessions = kept.status()
    except BufferError:  # a folder of another user, which that user's own check counts
        return None
    for one in sessions:
        if one["entries"] and one["deployment"] not in ("", kept.deployment):
            written = one["oldest_unacknowledged"] or one["started_at"]
            oldest[one["deployment"]] = min(written, oldest.get(one["deployment"], written))
    for name, written in sorted(oldest.items(), key=lambda item: item[1]):
        if (age := time.time() - written) > _OTHERS_SECONDS:
            found = f"entries of the deployment {name} wait since {age:,.0f} s"
            command = f"nexus buffer flush --of {shlex.quote(name)}"
            remedy = "Start a worker with its NEXUS_DATABASE_URL. If this deployment has taken its place, run"
            return failed("buffer", found, f"{remedy} `{command}`.")
    return None


def servers(settings: Settings) -> Sequence[Check]:
    """Report which servers are used: the embedded servers of this package, or the servers of the two URLs.

    Raises:
        EmbeddedError: a program of the embedded servers is missing.
    """
    if not settings.embedded:
        return [passed("servers", "your own: NEXUS_DATABASE_URL and NEXUS_REDIS_URL are set")]
    from nexus_tasks.embedded import running
    from nexus_tasks.embedded.postgres import binaries
    from nexus_tasks.embedded.redis import executable

    programs = passed("servers", f"embedded: {_home_relative(Path(executable()))}, {binaries()}")
    addresses = running(settings.home)
    if addresses is None:
        return [programs]
    return [programs, passed("address", addresses.database_url.replace("+psycopg", "", 1))]


def _home_relative(path: Path) -> str:
    parts = path.parts
    return f"…/{Path(*parts[-3:])}" if len(parts) > 4 else str(path)


def embedder(settings: Settings) -> Sequence[Check]:
    """Check that the embedder makes a vector: its library, model or server may be missing, or refuse the key.

    Raises:
        ConfigurationError: no embedder has the configured name, or its library is not installed.
        JobError: its model cannot be loaded, or its server refuses.
    """
    from nexus_tasks.embeddings.choose import embedder

    made = embedder(settings, patience=_EMBEDDER_SECONDS)
    try:
        made.embed(["probe"])
    except Transient as error:
        remedy = "Check NEXUS_EMBEDDER_URL and that its server runs. Until then searches go by words alone."
        return [failed("embedder", f"{made.name}: {error.message}", remedy)]
    return [passed("embedder", made.name)]


def masked(url: str) -> str:
    """A URL without its passwords; ``(malformed)`` for a text that does not parse, or is no URL."""
    try:
        return mask_url(url) if "://" in url else "(malformed)"
    except ValueError:
        return "(malformed)"
