"""Start a server that outlives the starting process, tell whether the server lives, and stop the server."""

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
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import FileLock, is_locked, lock, try_lock
from nexus_tasks.files import open_log

START_SECONDS = 60.0  # the longest wait for a start: after a crash a server replays its log
ORPHAN_SECONDS = 5.0  # the longest wait for a living server to open its socket
_UNWRITABLE_SECONDS = 3.0  # Redis tries to write its file again every second

# The errors of a connection to a unix socket. An error in NOT_LISTENING shows that no server listens. An error in
# NO_ANSWER_YET, such as a full queue (EAGAIN) or a slow answer, shows that a server runs. In that case no second server
# may start.
NOT_LISTENING = (FileNotFoundError, ConnectionRefusedError)
NO_ANSWER_YET = (TimeoutError, BlockingIOError, ConnectionError)


class State(Enum):
    """The state of a server according to its answer on the socket."""

    DOWN = auto()  # no process listens
    STARTING = auto()  # the server listens and does not serve yet
    UP = auto()
    UNWRITABLE = auto()  # the server serves and cannot write its files


@dataclass(frozen=True)
class Server:
    """The commands, paths and probe that start, check and stop one server."""

    name: str
    folder: Path  # the server's data and working directory
    log: Path
    lock: Path  # the server and its children keep this file locked while they live
    pid_file: Path  # the server writes its pid into the first line
    leftovers: tuple[Path, ...]  # files of a killed server that would keep a new server from starting
    probe: Callable[[], State]
    command: Callable[[], list[str]]
    stop: tuple[tuple[signal.Signals, float], ...]  # each signal in turn, and the seconds to wait after it
    account: Account | None = None


def start(server: Server) -> bool:
    """Launch ``server`` unless it runs; returns whether this call launched it. Call this under the start lock.

    Raises:
        EmbeddedError: an earlier server hangs and cannot be stopped, or the program is not installed.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while server.probe() is State.DOWN:
        if (held := try_lock(server.lock)) is not None:
            with held:
                launch(server, held)
            return True
        # The server lives and does not listen. Either it was launched a moment ago, or it is ending, or a cleaner of
        # temporary files deleted its socket. In the last case the server must end before a new server opens the same
        # files.
        if time.monotonic() > deadline:
            halt(server)
        time.sleep(0.02)
    return False


def launch(server: Server, held: FileLock) -> None:
    """Run the server in its own process session, as a child of init. The server inherits the lock file ``held``."""
    for path in server.leftovers:
        path.unlink(missing_ok=True)
    # The shell ends at once, so init adopts the server. The server outlives this process, gets no signal from this
    # process's terminal, and leaves no zombie.
    command = ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *server.command()]
    with os.fdopen(open_log(os.fspath(server.log)), "ab") as log:
        subprocess.run(
            command,
            check=True,
            cwd=server.folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # without this process's PGPORT, LANG and so on
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
        server: a server that :func:`start` was called for.
        launched: the servers that this process launched. A ``server`` that was ending is launched again and added.
        log_start: the size of the server's log before the start, bytes; errors quote the log after this offset.

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
            launched.clear()  # the caller stops no server: after a stop the next start would replay the same log again
            reason = _tail(server.log, log_start)
            raise EmbeddedError(
                f"{server.name} runs, but has not answered for {START_SECONDS:.0f} s: {reason}",
                remedy=f"Try again when {server.log} says it is ready, or stop it with `nexus down` and try again.",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def halt(server: Server) -> bool:
    """Stop ``server``; returns whether the server ran. Call this under the start lock.

    Raises:
        EmbeddedError: the server lives on after every signal.
    """
    if not is_locked(server.lock):
        return False
    for sign, seconds in server.stop:
        deadline = time.monotonic() + seconds
        sent = False
        while time.monotonic() < deadline:
            sent = sent or _signal(server, sign)  # tried again: a server has no pid file right after its launch
            if not is_locked(server.lock):
                return True
            time.sleep(0.005)
    raise EmbeddedError(
        f"{server.name} does not end.", remedy=f"See which processes hold {server.lock} (`fuser {server.lock}`)."
    )


def log_size(server: Server) -> int:
    """The present size of the server's log, bytes."""
    return server.log.stat().st_size if server.log.exists() else 0


def await_lock(path: Path, seconds: float) -> FileLock:
    """Wait for the lock on ``path`` and take it.

    Raises:
        EmbeddedError: another process held the lock for all of ``seconds``.
    """
    try:
        return lock(path, seconds)
    except TimeoutError:
        raise EmbeddedError(
            f"Another process has been starting or stopping the embedded servers for {seconds:.0f} s.",
            remedy=f"See which process holds {path} (`fuser {path}`), end it, and try again.",
        ) from None


def _signal(server: Server, sign: signal.Signals) -> bool:
    # The pid belongs to this server: every launch first deletes the file, and the lock shows that the writer lives.
    with suppress(OSError, ValueError, IndexError):
        pid = int(server.pid_file.read_text().splitlines()[0])
        os.kill(pid, sign)
        os.kill(pid, signal.SIGCONT)  # a suspended process handles a signal only after it continues
        return True
    return False


def _failure(server: Server, message: str) -> EmbeddedError:
    if shutil.disk_usage(server.folder).free < 20_000_000:
        return EmbeddedError(
            f"{message} The disk is full.",
            remedy=f"Free some space where {server.folder} lies (or set NEXUS_HOME elsewhere) and try again.",
        )
    return EmbeddedError(message, remedy=f"Read {server.log}, correct the cause and try again.")


def _tail(log: Path, since: int) -> str:
    if not log.exists():
        return "its log is empty."
    with log.open("rb") as lines:
        lines.seek(since if since <= log.stat().st_size else 0)
        text = lines.read().decode(errors="replace")
    return " ".join(" ".join(text.splitlines()[-4:]).split())[-400:] or "its log is empty."
