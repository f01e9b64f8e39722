"""Where things lie: the folders under ``NEXUS_HOME`` and the sockets, which need a short path."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nexus_tasks.embedded.account import Account, let_through, postgres_account
from nexus_tasks.errors import EmbeddedError

# A socket's path has 107 bytes on Linux and 103 on macOS, and Redis cuts a longer one off without a word.
_LONGEST = 103
_LONGEST_NAME = "/pg/.s.PGSQL.5432"
# Flower takes the socket's path out of the broker URL without unquoting it, and Postgres splits its folders at commas.
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass(frozen=True)
class Places:
    """The paths of one installation. ``run`` holds the sockets: ``home/run``, or what that links to."""

    home: Path
    run: Path
    account: Account | None = None

    @property
    def postgres(self) -> Path:
        """Postgres' data folder."""
        return self.home / "postgres"

    @property
    def redis(self) -> Path:
        """Redis' folder: the append-only file."""
        return self.home / "redis"

    @property
    def redis_socket(self) -> Path:
        """Redis' socket."""
        return self.run / "redis.sock"

    @property
    def postgres_sockets(self) -> Path:
        """The folder of Postgres' socket; a folder of its own because another user may own it."""
        return self.run / "pg"

    def log(self, name: str) -> Path:
        """The log file ``logs/NAME.log``."""
        return self.home / "logs" / f"{name}.log"

    def server_lock(self, name: str) -> Path:
        """The file that a living server keeps locked."""
        return self.home / f"{name}.lock"


def start_lock(home: Path) -> Path:
    """The file that is locked while servers are started or stopped."""
    return home / "start.lock"


def prepare_home(home: Path) -> Account | None:
    """Make ``home`` and its folders, closed to other users; returns who Postgres runs as.

    Raises:
        EmbeddedError: it belongs to another user.
        OSError: it cannot be made.
    """
    account = postgres_account()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.geteuid():
        raise EmbeddedError(
            f"{home} belongs to another user.", remedy="Run nexus as its owner, or set NEXUS_HOME to a folder of yours."
        )
    _close(home, account)
    for name in ("redis", "logs"):
        (home / name).mkdir(mode=0o700, exist_ok=True)
    return account


def prepare(home: Path, account: Account | None) -> Places:
    """Make the folder of the sockets too. Call it under :func:`start_lock`.

    Raises:
        EmbeddedError: no short enough folder was found, or Postgres' user cannot get there.
        OSError: it cannot be made.
    """
    places = Places(home, _run_folder(home, account), account)
    _close(places.run, account)
    places.postgres_sockets.mkdir(mode=0o700, exist_ok=True)
    if account is not None:
        os.chown(places.postgres_sockets, account.uid, account.gid)
        let_through(places.postgres, account)
        let_through(places.postgres_sockets, account)
    return places


def locate(home: Path) -> Places | None:
    """The places as they are, or ``None`` when nothing was ever started here; makes nothing."""
    run = home / "run"
    with suppress(OSError):  # not a link, or nothing there
        run = run.readlink()
    return Places(home, run, postgres_account(create=False)) if _is_ours(run) else None


def forget_run_folder(home: Path) -> None:
    """Remove a folder for sockets outside of ``home``, so that a stopped installation leaves nothing elsewhere."""
    link = home / "run"
    if link.is_symlink() and _is_ours(link.readlink()):
        shutil.rmtree(link.readlink())
        link.unlink()


def _close(folder: Path, account: Account | None) -> None:
    if account is None:
        folder.chmod(0o700)
    else:
        os.chown(folder, -1, account.gid)
        folder.chmod(0o710)


def _run_folder(home: Path, account: Account | None) -> Path:
    link = home / "run"
    if not link.is_symlink() and _fits(link):
        link.mkdir(mode=0o700, exist_ok=True)
        return link
    # The link tells every process, whatever its TMPDIR, and lets a squatted name be replaced by another.
    if link.is_symlink():
        if _is_ours(link.readlink()) and _fits(link.readlink()):
            return link.readlink()
        link.unlink()
    elif link.is_dir():  # made while home had a shorter path
        shutil.rmtree(link)
    for base in dict.fromkeys((Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve())):
        if _fits(base / "nexus-123456789abc") and base.is_dir():
            folder = _short_folder(base, home)
            _close(folder, account)
            link.symlink_to(folder)
            return folder
    raise EmbeddedError(
        f"{home} is too long a path for a socket, and so is the folder for temporary files.",
        remedy="Set NEXUS_HOME or TMPDIR to a folder with a short path of plain letters and digits.",
    )


def _short_folder(base: Path, home: Path) -> Path:
    # The same name after every stop, so that the URLs which long-lived processes hold stay true.
    folder = base / f"nexus-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return folder if _is_ours(folder) else Path(tempfile.mkdtemp(prefix="nexus-", dir=base))
    return folder


def _fits(folder: Path) -> bool:
    name = f"{folder}{_LONGEST_NAME}"
    return len(os.fsencode(name)) <= _LONGEST and _PLAIN.fullmatch(name) is not None


def _is_ours(folder: Path) -> bool:
    # A folder in /tmp may have been cleaned away and made again by somebody who wants to be spoken to.
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o027
