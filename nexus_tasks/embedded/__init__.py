"""A real Redis and a real PostgreSQL with pgvector for one machine, shared by every process of one user.

Importing starts nothing. :func:`ensure` starts what does not run and leaves it running: the servers belong to the home
folder, not to the process that happened to need them first. Stop them before you delete the folder.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from nexus_tasks.embedded.locks import lock
from nexus_tasks.embedded.places import Places, forget_run_folder, locate, prepare, prepare_home, start_lock
from nexus_tasks.embedded.postgres import DATABASE, USER, initialise, postgres_server
from nexus_tasks.embedded.redis import redis_server
from nexus_tasks.embedded.server import Server, State, await_up, halt, log_size, start
from nexus_tasks.embedded.urls import celery_url, client_url
from nexus_tasks.errors import EmbeddedError

__all__ = ["Endpoints", "celery_url", "client_url", "ensure", "running", "stop"]

_TURN_SECONDS = 120.0  # how long one waits for another who starts or stops the servers


@dataclass(frozen=True)
class Endpoints:
    """Where the servers answer."""

    database_url: str
    """For SQLAlchemy with psycopg: ``postgresql+psycopg://nexus@/nexus?host=FOLDER``."""
    redis_url: str
    """For redis-py: ``unix:///PATH?db=0``."""

    @property
    def broker_url(self) -> str:
        """The same Redis for Celery (broker and results) and Flower: ``redis+socket:///PATH?virtual_host=0``."""
        return celery_url(self.redis_url)


def ensure(home: Path) -> Endpoints:
    """Start what does not run under ``home`` and return when both servers answer; costs milliseconds when they do.

    Safe to call from any number of processes at once, and after a ``kill -9`` of anything.

    Raises:
        EmbeddedError: the extra is not installed, the folder cannot be written, the disk is full, or a server refuses.
            What this call had started is stopped again.
    """
    home = _absolute(home)
    try:
        places = locate(home)
        if places is None or any(server.probe() is not State.UP for server in _servers(places)):
            places = _bring_up(home)
    except OSError as error:
        raise _explain(error, home) from error
    return _endpoints(places)


def running(home: Path) -> Endpoints | None:
    """Where the servers of ``home`` answer, or ``None`` unless both do. Starts and changes nothing."""
    places = locate(_absolute(home))
    if places is None or any(server.probe() in (State.DOWN, State.STARTING) for server in _servers(places)):
        return None
    return _endpoints(places)


def stop(home: Path) -> list[str]:
    """Stop the servers of ``home``; returns the names of those that ran. At most half a minute per server.

    Redis saves its append-only file, Postgres shuts down fast: clients are disconnected, nothing committed is lost.

    Raises:
        EmbeddedError: a server does not end, or another process holds the start lock.
    """
    home = _absolute(home)
    if not start_lock(home).exists():
        return []
    with lock(start_lock(home), _TURN_SECONDS):
        places = Places(home, home / "run")  # stopping needs no socket: a living server is found by its lock
        stopped = [server.name for server in _servers(places) if halt(server)]
        forget_run_folder(home)
    return stopped


def _bring_up(home: Path) -> Places:
    account = prepare_home(home)
    with lock(start_lock(home), _TURN_SECONDS):
        places = prepare(home, account)
        _probe_disk(home)
        launched: list[Server] = []
        try:
            redis, postgres = _servers(places)
            marks = {server.name: log_size(server) for server in (redis, postgres)}
            if start(redis):  # it loads its file while Postgres is made and starts
                launched.append(redis)
            initialise(places)
            if start(postgres):
                launched.append(postgres)
            for server in (redis, postgres):
                await_up(server, launched, marks[server.name])
        except (EmbeddedError, OSError):
            for server in launched:
                halt(server)
            raise
    return places


def _servers(places: Places) -> tuple[Server, Server]:
    return redis_server(places), postgres_server(places)


def _endpoints(places: Places) -> Endpoints:
    return Endpoints(
        database_url=f"postgresql+psycopg://{USER}@/{DATABASE}?host={places.postgres_sockets}",
        redis_url=f"unix://{places.redis_socket}?db=0",
    )


def _absolute(home: Path) -> Path:
    return home.expanduser().resolve()


def _probe_disk(home: Path) -> None:
    # Both servers start on a full disk and fail later, or fail without being able to write down why.
    probe = home / "probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(1_000_000))
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


def _explain(error: OSError, home: Path) -> EmbeddedError:
    elsewhere = "set NEXUS_HOME to another folder"
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = error.filename or home
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EmbeddedError(f"The disk that holds {home} is full.", remedy=f"Free some space, or {elsewhere}.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EmbeddedError(f"{where} cannot be written: {reason}.", remedy=f"Give yourself access, or {elsewhere}.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return EmbeddedError(f"{where} is in the way: {reason}.", remedy=f"Move it away, or {elsewhere}.")
    return EmbeddedError(f"The embedded servers could not be started: {where}: {reason}.")
