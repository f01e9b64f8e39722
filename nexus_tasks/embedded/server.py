"""Start, check and stop an embedded server. The server keeps running after the process that started it has ended.

The start lock (``start_lock`` in ``places.py``) lets one process at a time start or stop the servers of a home folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from nexus_tasks.embedded.account import Account
from nexus_tasks.errors import EmbeddedError, EmbeddedUnavailable
from nexus_tasks.file_locks import FileLock, has_open, is_locked, lock, try_lock
from nexus_tasks.files import open_log

START_SECONDS = 60.0  # the longest wait for a start, because after a crash a server replays its log before it answers
# The longest wait for a server that runs but does not listen on its socket. Then it is stopped and launched anew.
ORPHAN_SECONDS = 5.0
# The longest wait until Redis can write its file. Redis tries to write again every second.
_UNWRITABLE_SECONDS = 3.0

# What Redis says of a file that is damaged before its end, for example by a power cut that leaves zeros.
_DAMAGED = "Bad file format reading the append only file"

# The errors of a connection to a unix socket. An error in NOT_LISTENING shows that no server listens. An error in
# NO_ANSWER_YET, such as a full queue (EAGAIN) or a slow answer, shows that a server runs. No second server may start
# while a server runs.
NOT_LISTENING = (FileNotFoundError, ConnectionRefusedError)
NO_ANSWER_YET = (TimeoutError, BlockingIOError, ConnectionError)


class State(Enum):
    """The state of a server. The answer on the server's socket shows the state."""

    DOWN = auto()  # no process listens
    STARTING = auto()  # the server listens, but does not answer requests yet
    UP = auto()
    UNWRITABLE = auto()  # the server answers, but cannot write its files


@dataclass(frozen=True)
class Server:
    """One server: the command to start it, the probe to check it, the signals to stop it, and its files."""

    name: str
    folder: Path  # the server's data and working directory
    log: Path  # the log file
    lock: Path  # the server and its children keep this file locked as long as they run
    pid_file: Path  # the server writes its pid into the first line of this file
    leftovers: tuple[Path, ...]  # files that a killed server leaves, and that would keep a new server from starting
    probe: Callable[[], State]
    command: Callable[[], list[str]]
    stop: tuple[tuple[signal.Signals, float], ...]  # the signals to send one after another: (signal, seconds to wait)
    account: Account | None = None  # the user to run the server as; ``None`` means the user of this process


def start(server: Server) -> bool:
    """Launch ``server`` if it does not run. Returns whether this call launched the server.

    The caller holds the start lock (see the module's docstring).

    Raises:
        EmbeddedError: an earlier server hangs and cannot be stopped, or the program is not installed.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while server.probe() is State.DOWN:
        if (held := try_lock(server.lock)) is not None:
            with held:
                launch(server, held)
            return True
        # The server runs, but does not listen. It was launched a moment ago, or is shutting down, or a program that
        # cleans temporary files has deleted its socket. A server without a socket must end before a new server opens
        # the same files.
        if time.monotonic() > deadline:
            halt(server)
        time.sleep(0.02)  # no event says when another process releases its lock or makes its socket
    return False


def launch(server: Server, held: FileLock) -> None:
    """Run the server in a process session of its own, as a child of init. The server inherits the lock ``held``."""
    for path in server.leftovers:
        path.unlink(missing_ok=True)
    # The shell ends at once, and init becomes the parent of the server. So the server keeps running after this process,
    # gets no signal from this process's terminal, and leaves no zombie process.
    command = ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *server.command()]
    with os.fdopen(open_log(os.fspath(server.log)), "ab") as log:
        subprocess.run(
            command,
            check=True,
            cwd=server.folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # variables of this process, such as PGPORT, are left out
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(held.fd,),
            start_new_session=True,
            umask=0o077,
            **(server.account.popen if server.account else {}),
        )


def await_up(server: Server, launched: list[Server], log_start: int) -> None:
    """Wait until ``server`` answers.

    Args:
        server: the server to wait for. :func:`start` was called for this server.
        launched: the servers that this process launched. After an error the caller stops these servers. If another
            process launched ``server``, and ``server`` ends during the wait, this call launches ``server`` again and
            adds it to ``launched``.
        log_start: the size of the server's log before the start, in bytes. Errors quote the log after this offset.

    Raises:
        EmbeddedError: the server ended, took longer than 60 s, or cannot write its files.
    """
    began = time.monotonic()
    pause = 0.002
    while (state := server.probe()) is not State.UP:
        waited = time.monotonic() - began
        if state is State.UNWRITABLE and waited > _UNWRITABLE_SECONDS:
            raise _failure(server, f"{server.name} runs, but cannot write its files in {server.folder}.")
        if state is State.DOWN and not is_locked(server.lock):
            if server in launched:
                raise _failure(server, f"{server.name} did not start: {_tail(server.log, log_start)}")
            if start(server):
                launched.append(server)
        if waited > START_SECONDS:
            # After the error below, the caller stops the servers in ``launched``. But a server that replays its log
            # must go on, because the next start would replay the whole log again. So the list is emptied.
            launched.clear()
            reason = _tail(server.log, log_start)
            raise EmbeddedUnavailable(
                f"{server.name} runs, but has not answered for {START_SECONDS:.0f} s: {reason}",
                remedy=f"Try again when {server.log} says it is ready, or stop it with `nexus down` and try again.",
            )
        time.sleep(pause)  # a server that starts does not tell when it is ready
        pause = min(pause * 1.5, 0.05)


def halt(server: Server) -> bool:
    """Stop ``server``. Returns whether the server ran. The caller holds the start lock (see the module's docstring).

    Raises:
        EmbeddedError: the server still runs after every signal.
    """
    if not is_locked(server.lock):
        return False
    for sign, seconds in server.stop:
        deadline = time.monotonic() + seconds
        sent = False
        while time.monotonic() < deadline:
            # Try again until the signal is sent, because a server has no pid file right after its launch.
            sent = sent or _signal(server, sign)
            if not is_locked(server.lock):
                return True
            time.sleep(0.005)  # the server is not this process's child, so there is nothing to wait on
    raise EmbeddedError(
        f"{server.name} does not end.", remedy=f"See which processes hold {server.lock} (`fuser {server.lock}`)."
    )


def log_size(server: Server) -> int:
    """The size of the server's log, in bytes. A missing log has the size 0."""
    return server.log.stat().st_size if server.log.exists() else 0


def await_lock(path: Path, seconds: float) -> FileLock:
    """Wait for the lock on ``path`` and take it.

    Raises:
        EmbeddedError: another process held the lock for all of ``seconds``, or the file cannot be opened.
    """
    try:
        return lock(path, seconds)
    except TimeoutError:
        raise EmbeddedUnavailable(
            f"Another process has been starting or stopping the embedded servers for {seconds:.0f} s.",
            remedy=f"See which process holds {path} (`fuser {path}`), end it, and try again.",
        ) from None
    except OSError as error:
        raise EmbeddedError(
            f"{path} cannot be opened: {error.strerror}.",
            remedy=f"Run the command as the owner of {path.parent}, which must take writes.",
        ) from None


def _signal(server: Server, sign: signal.Signals) -> bool:
    # Every launch first deletes the file. A server in another container has another pid here.
    with suppress(OSError, ValueError, IndexError):
        pid = int(server.pid_file.read_text().splitlines()[0])
        if has_open(pid, server.lock):
            os.kill(pid, sign)
            os.kill(pid, signal.SIGCONT)  # a suspended process handles the signal only after SIGCONT
            return True
    return False


def _failure(server: Server, message: str) -> EmbeddedError:
    if shutil.disk_usage(server.folder).free < 20_000_000:
        return EmbeddedUnavailable(
            f"{message} The disk is full.",
            remedy=f"Free some space on the disk of {server.folder} (or set NEXUS_HOME elsewhere) and try again.",
        )
    if _DAMAGED in message:
        return EmbeddedError(
            message,
            remedy=f"Move the folder {server.folder} away and try again. The workers ask again for everything that"
            " Postgres wants.",
        )
    return EmbeddedError(message, remedy=f"Read {server.log}, correct the cause and try again.")


def _tail(log: Path, since: int) -> str:
    if not log.exists():
        return "its log is empty."
    with log.open("rb") as lines:
        lines.seek(since if since <= log.stat().st_size else 0)
        text = lines.read().decode(errors="replace")
    return " ".join(" ".join(text.splitlines()[-4:]).split())[-400:] or "its log is empty."
