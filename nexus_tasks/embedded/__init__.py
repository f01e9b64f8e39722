"""Embedded servers: a Redis and a PostgreSQL with pgvector that all processes of one user on this machine share.

Importing this package starts no server. :func:`ensure` starts the servers that do not run. The servers keep their files
in the home folder (``NEXUS_HOME``), and keep running after the process that started them has ended. Stop the servers
before you delete the home folder.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nexus_tasks.embedded.origin import is_copy, take_into_use
from nexus_tasks.embedded.places import Places, forget_run_folder, locate, prepare, prepare_home, start_lock
from nexus_tasks.embedded.postgres import DATABASE, USER, initialise, postgres_server
from nexus_tasks.embedded.redis import redis_server
from nexus_tasks.embedded.server import Server, State, await_lock, await_up, halt, log_size, start
from nexus_tasks.embedded.urls import celery_url, client_url
from nexus_tasks.errors import EmbeddedError, EmbeddedUnavailable
from nexus_tasks.file_locks import FileLock

__all__ = [
    "MADE_BEFORE",
    "ServerAddresses",
    "celery_url",
    "client_url",
    "ensure",
    "explain",
    "restart_ended",
    "running",
    "stop",
]

# This environment variable is set in the worker and beat of a stack when its home folder has a database. If the folder
# is then deleted or renamed, these processes make no new folder, because its database would be empty.
MADE_BEFORE = "_NEXUS_HOME_IS_MADE"

_START_LOCK_SECONDS = 120.0  # the longest wait for another process that starts or stops the servers


@dataclass(frozen=True)
class ServerAddresses:
    """The addresses of the embedded Redis and the embedded Postgres."""

    database_url: str
    """For SQLAlchemy with psycopg: ``postgresql+psycopg://nexus@/nexus?host=FOLDER``."""
    redis_url: str
    """For redis-py: ``unix:///PATH?db=0``."""

    @property
    def broker_url(self) -> str:
        """The address of the Redis for Celery and Flower: ``redis+socket:///PATH?virtual_host=0``.

        Celery uses the address for its broker and for its results.
        """
        return celery_url(self.redis_url)


def ensure(home: Path, *, announce: bool = True) -> ServerAddresses:
    """Start the servers of ``home`` that do not run, and return when Redis and Postgres answer.

    A start is announced by one line on standard error, because the servers go on when this process has ended. The call
    takes milliseconds when both servers run. Any number of processes may call this function at once, even
    after a ``kill -9`` of one of them.

    Args:
        home: the folder of the servers' files. The call makes a missing folder.
        announce: print the line on standard error. The demo, which stops its servers itself, prints none.

    Returns:
        The addresses of the servers.

    Raises:
        EmbeddedError: one of these reasons:

            - The extra ``embedded`` is not installed.
            - The folder belongs to another user or cannot be written, or the disk is full.
            - The folder is a copy of another home folder, made while the servers of that folder ran.
            - Another process has held the start lock for 120 s.
            - A server does not start, or a running server has not answered for 60 s.

            After an error this call stops the servers that it started. But when a running server has not answered for
            60 s, all servers keep running, because that server may be replaying its log.
    """
    home = _absolute(home)
    try:
        places = None if is_copy(home) else locate(home)
        if places is None or any(server.probe() is not State.UP for server in _servers(places)):
            places = _bring_up(home, announce=announce)
    except OSError as error:
        raise explain(error, home) from error
    return _addresses(places)


def restart_ended(home: Path) -> None:
    """Start the servers of ``home`` that have ended. A server that runs is left alone, whether it answers or not.

    Unlike :func:`ensure`, this call waits for no server that hangs, and so does not keep the start lock from commands.

    Raises:
        EmbeddedError: a server does not start, or one of the other reasons of :func:`ensure`.
    """
    home = _absolute(home)
    places = None if is_copy(home) else locate(home)
    if places is None or any(server.probe() is State.DOWN for server in _servers(places)):
        ensure(home)


def running(home: Path) -> ServerAddresses | None:
    """The addresses of the servers of ``home``; ``None`` when a server does not answer. The call starts no server."""
    home = _absolute(home)
    places = None if is_copy(home) else locate(home)
    if places is None or any(server.probe() in (State.DOWN, State.STARTING) for server in _servers(places)):
        return None
    return _addresses(places)


def stop(home: Path) -> list[str]:
    """Stop the servers of ``home``. Returns the names of the servers that ran.

    Redis first writes its append-only file. Postgres disconnects its clients, and loses no commit. The call waits at
    most 120 s for the start lock, 20 s for Redis and 25 s for Postgres.

    Raises:
        EmbeddedError: a server does not end, or another process has held the start lock for 120 s.
    """
    home = _absolute(home)
    if not start_lock(home).exists() or is_copy(home):
        return []
    with await_lock(start_lock(home), _START_LOCK_SECONDS):
        # Stopping uses the lock files and pid files, but no socket. So any folder will do for the sockets here.
        places = Places(home, home / "run")
        stopped = [server.name for server in _servers(places) if halt(server)]
        forget_run_folder(home)
    return stopped


def _bring_up(home: Path, *, announce: bool) -> Places:
    if os.environ.get(MADE_BEFORE) and not (home / "postgres").exists():
        raise EmbeddedError(f"The folder {home} was deleted or renamed.", remedy="Start the stack again: `nexus up`.")
    account = prepare_home(home)
    with _await_start_lock(home):
        take_into_use(home)
        places = prepare(home, account)
        _probe_disk(home)
        launched: list[Server] = []
        try:
            redis, postgres = _servers(places)
            log_starts = {server.name: log_size(server) for server in (redis, postgres)}
            if start(redis):  # start Redis first: it loads its file while Postgres is initialised and starts
                launched.append(redis)
            initialise(places)
            if start(postgres):
                launched.append(postgres)
            for server in (redis, postgres):
                await_up(server, launched, log_starts[server.name])
        except (EmbeddedError, OSError):
            for server in launched:
                halt(server)
            raise
    if announce and launched and sys.stderr is not None:
        names = " and ".join(server.name for server in launched)
        print(f"Started the embedded {names} in {home}. `nexus down` stops them.", file=sys.stderr)
    return places


def _await_start_lock(home: Path) -> FileLock:
    """Wait for the start lock. The process that holds it may itself wait for a server that does not answer."""
    try:
        return await_lock(start_lock(home), _START_LOCK_SECONDS)
    except EmbeddedUnavailable:
        places = locate(home)
        for server in _servers(places) if places else ():
            if server.probe() is State.STARTING:
                raise EmbeddedUnavailable(
                    f"{server.name} runs, but does not answer. Another process has waited for it, too.",
                    remedy=f"Read {server.log}. Try again later, or stop it with `nexus down` and try again.",
                ) from None
        raise


def _servers(places: Places) -> tuple[Server, Server]:
    return redis_server(places), postgres_server(places)


# libpq takes what an address leaves out from variables such as PGPORT, which a user has set for another server.
_FIXED = "port=5432&channel_binding=disable"


def _addresses(places: Places) -> ServerAddresses:
    return ServerAddresses(
        database_url=f"postgresql+psycopg://{USER}@/{DATABASE}?host={places.postgres_sockets}&{_FIXED}",
        redis_url=f"unix://{places.redis_socket}?db=0",
    )


def _absolute(home: Path) -> Path:
    try:
        return home.expanduser().resolve()
    except RuntimeError as error:  # a link that leads to itself, or a user that does not exist
        raise EmbeddedError(f"{home} is no folder: {error}", remedy="Set NEXUS_HOME to another folder.") from None


def _probe_disk(home: Path) -> None:
    # On a full disk a server may start and then fail, perhaps without the space to write the reason to its log. Writing
    # a file of 1 MB finds a full disk before the start. Its name is new, because the user may have files in the folder.
    with tempfile.TemporaryFile(dir=home) as file:
        file.write(bytes(1_000_000))
        file.flush()
        os.fsync(file.fileno())


def explain(error: OSError, home: Path) -> EmbeddedError:
    """The error for a home folder that cannot be made or used, with the cause in the file system."""
    elsewhere = "set NEXUS_HOME to another folder"
    reason = os.strerror(error.errno) if error.errno else str(error)
    path = error.filename or home
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EmbeddedUnavailable(f"The disk that holds {home} is full.", remedy=f"Free some space, or {elsewhere}.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EmbeddedError(f"{path} cannot be written: {reason}.", remedy=f"Give yourself access, or {elsewhere}.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return EmbeddedError(f"{path} is in the way: {reason}.", remedy=f"Move it away, or {elsewhere}.")
    return EmbeddedError(
        f"The folder {home} (NEXUS_HOME) cannot be used: {path}: {reason}.", remedy="Set NEXUS_HOME to another folder."
    )
