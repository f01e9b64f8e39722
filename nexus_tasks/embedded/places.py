"""The paths of the embedded servers: folders under ``NEXUS_HOME``, and the folder of the unix sockets.

A unix socket needs a short path of plain characters. The path of ``NEXUS_HOME`` may be too long, or may contain a space
or a comma. The sockets are then in a folder under the folder for temporary files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nexus_tasks.embedded.account import Account, let_pass, let_through, postgres_account
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.files import make_folder

# A socket's path has at most 107 bytes on Linux and 103 bytes on macOS. Redis cuts off a longer path without an error.
_LONGEST = 103
_LONGEST_NAME = "/pg/.s.PGSQL.5432"
# Flower does not unquote the socket's path in the broker URL. Postgres splits the list of socket folders at commas.
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass(frozen=True)
class Places:
    """The paths of the embedded servers of one home folder.

    ``run`` is the folder of the sockets. It is the folder ``home/run``, or the target of the link ``home/run``.
    ``account`` is the user that Postgres runs as when root starts it.
    """

    home: Path
    run: Path
    account: Account | None = None

    @property
    def postgres(self) -> Path:
        """Postgres' data folder."""
        return self.home / "postgres"

    @property
    def redis(self) -> Path:
        """Redis' folder, with its append-only file."""
        return self.home / "redis"

    @property
    def redis_socket(self) -> Path:
        """Redis' socket."""
        return self.run / "redis.sock"

    @property
    def postgres_sockets(self) -> Path:
        """The folder of Postgres' socket. The user that Postgres runs as owns this folder."""
        return self.run / "pg"

    def log(self, name: str) -> Path:
        """The log file ``logs/NAME.log``."""
        return self.home / "logs" / f"{name}.log"

    def server_lock(self, name: str) -> Path:
        """The lock file of a server. The server keeps this file locked as long as it runs."""
        return self.home / f"{name}.lock"


def start_lock(home: Path) -> Path:
    """The lock file for starting and stopping. A process holds this lock while it starts or stops servers."""
    return home / "start.lock"


def prepare_home(home: Path) -> Account | None:
    """Make ``home`` and its folders, unless they exist. A folder that this function makes is closed to other users.

    ``pgserver`` may pass through ``home``. Apart from that, a ``home`` that exists keeps its mode, because it may be a
    folder that other users need.

    Returns:
        The account that Postgres runs as. ``None`` means the user of this process.

    Raises:
        EmbeddedError: ``home``, or a folder in it, belongs to another user, or the path is no text.
        OSError: a folder cannot be made.
    """
    account = postgres_account()
    _check_text(home)
    make_folder(os.fspath(home))
    if home.stat().st_uid != os.geteuid():
        raise EmbeddedError(
            f"{home} belongs to another user.", remedy="Run nexus as its owner, or set NEXUS_HOME to a folder of yours."
        )
    _check_owners(home)
    if account is not None:
        let_pass(home, account)
    for name in ("redis", "logs"):
        make_folder(os.fspath(home / name))
    return account


def _check_text(home: Path) -> None:
    try:
        os.fspath(home).encode()
    except UnicodeEncodeError:
        raise EmbeddedError(
            f"The path {os.fsencode(home)!r} is not UTF-8, as Postgres needs it.",
            remedy="Set NEXUS_HOME to another folder.",
        ) from None


# Files and folders of ``home``. When others may write to ``home``, another user could make one of them first, and read
# or forge what is stored. Postgres checks the owner of its own folder.
_OWN = ("redis", "logs", "run", "buffer", "context", "context-sessions", "transcripts", "flower.env", "stack.pid")


def _check_owners(home: Path) -> None:
    for path in (home / name for name in _OWN):
        with suppress(FileNotFoundError):
            if path.lstat().st_uid != os.geteuid():
                raise EmbeddedError(
                    f"{path} belongs to another user.",
                    remedy=f"Close {home} to others (`chmod 0700`), and remove what is not yours.",
                )


def prepare(home: Path, account: Account | None) -> Places:
    """Make the folder of the sockets. Take the lock :func:`start_lock` and call :func:`prepare_home` first.

    Raises:
        EmbeddedError: no folder has a path that is short enough, or the user of Postgres cannot reach the folder.
        OSError: a folder cannot be made.
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
    """The paths of the servers of ``home``. ``None`` without a folder of the sockets, which this call does not make."""
    run = home / "run"
    with suppress(OSError):  # readlink raises when ``run`` is not a link, or does not exist
        run = run.readlink()
    return Places(home, run, postgres_account(create=False)) if _is_ours(run) else None


def forget_run_folder(home: Path) -> None:
    """Remove the folder of the sockets if it is outside of ``home``.

    A folder that has other files stays with them: a user may have made the link to it.
    """
    link = home / "run"
    if link.is_symlink() and _is_ours(link.readlink()):
        _remove_sockets(Places(home, link.readlink()))
        link.unlink()


def _remove_sockets(places: Places) -> None:
    for path in (places.redis_socket, *places.postgres_sockets.glob(".s.PGSQL.5432*")):
        path.unlink(missing_ok=True)
    for folder in (places.postgres_sockets, places.run):
        with suppress(OSError):  # it is missing, or has other files
            folder.rmdir()


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
    # Every process follows the link ``home/run``. Therefore processes with different values of TMPDIR use the same
    # folder. If another user has made a folder of the usual name in /tmp, the link points to a folder with a new name.
    if link.is_symlink():
        if _is_ours(link.readlink()) and _fits(link.readlink()):
            return link.readlink()
        link.unlink()
    elif link.is_dir():  # the folder was made when the path of ``home`` was shorter
        _remove_sockets(Places(home, link))
        if link.exists():  # with files that are not ours
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(link))
    for base in dict.fromkeys((Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve())):
        if _fits(base / "nexus-123456789abc") and base.is_dir():
            folder = _short_folder(base, home)
            _close(folder, account)
            link.symlink_to(folder)
            return folder
    raise EmbeddedError(
        f"The paths of {home} and of the folder for temporary files are too long for a socket.",
        remedy="Set NEXUS_HOME or TMPDIR to a folder with a short path of plain letters and digits.",
    )


def _short_folder(base: Path, home: Path) -> Path:
    # The name depends only on ``home``. A restart of the servers makes the same folder again, so that the URLs in
    # long-lived processes stay valid.
    folder = base / f"nexus-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if _is_ours(folder) and not _is_anothers(home, folder):
            return folder
        return Path(tempfile.mkdtemp(prefix="nexus-", dir=base))
    return folder


def _is_anothers(home: Path, folder: Path) -> bool:
    """Whether servers of another home folder use the folder: ``home`` has no database, and yet a server listens there.

    The other folder had the path of ``home`` before, and was renamed while its servers ran.
    """
    if (home / "postgres").exists():
        return False
    for path in (folder / "redis.sock", folder / "pg" / ".s.PGSQL.5432"):
        with socket.socket(socket.AF_UNIX) as connection, suppress(FileNotFoundError, ConnectionRefusedError):
            connection.settimeout(1.0)
            with suppress(TimeoutError, BlockingIOError):  # a server that does not answer listens all the same
                connection.connect(str(path))
            return True
    return False


def _fits(folder: Path) -> bool:
    name = f"{folder}{_LONGEST_NAME}"
    return len(os.fsencode(name)) <= _LONGEST and _PLAIN.fullmatch(name) is not None


def _is_ours(folder: Path) -> bool:
    # A program that cleans /tmp may remove the folder. Another user could then make a folder of the same name, to which
    # this user's clients would connect. The folder must therefore belong to this user.
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o027
