"""Starting a server so that it outlives its starter, telling whether it lives, and stopping it."""

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
from nexus_tasks.embedded.locks import FileLock, locked, try_lock
from nexus_tasks.errors import EmbeddedError

START_SECONDS = 60.0  # a server that replays a long log after a crash is given this long
ORPHAN_SECONDS = 5.0  # a living server without a socket is given this long to open one
_UNWRITABLE_SECONDS = 3.0  # Redis tries its file again every second
_LOG_BYTES = 10_000_000

# What connecting to a unix socket and asking can raise. A full queue (EAGAIN) or a slow answer means that somebody is
# there: only the first two mean that a server may be started in its place.
NOBODY_LISTENS = (FileNotFoundError, ConnectionRefusedError)
NO_ANSWER_YET = (TimeoutError, BlockingIOError, ConnectionError)


class State(Enum):
    """What a server says when it is spoken to."""

    DOWN = auto()  # nobody listens
    STARTING = auto()  # it listens, but does not serve yet
    UP = auto()
    UNWRITABLE = auto()  # it serves, but cannot write its files


@dataclass(frozen=True)
class Server:
    """One server: how to start it, ask it and stop it."""

    name: str
    folder: Path  # its data, and its working directory
    log: Path
    lock: Path  # locked as long as it, or a child of it, lives
    pid_file: Path  # it writes its pid into the first line
    leftovers: tuple[Path, ...]  # what a killed one leaves and a new one stumbles over
    probe: Callable[[], State]
    command: Callable[[], list[str]]
    stop: tuple[tuple[signal.Signals, float], ...]  # signals from polite to final, and the seconds each may take
    account: Account | None = None


def start(server: Server) -> bool:
    """Launch ``server`` unless it runs; returns whether it was launched. Call it under the start lock.

    Raises:
        EmbeddedError: an earlier one hangs and cannot be stopped, or the program is not installed.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while server.probe() is State.DOWN:
        if (held := try_lock(server.lock)) is not None:
            with held:
                launch(server, held)
            return True
        # Somebody lives but does not listen: just launched by a starter that died, just dying, or its socket was
        # deleted (a cleaner of temporary files). In the last case it must end before another one opens its files.
        if time.monotonic() > deadline:
            halt(server)
        time.sleep(0.02)
    return False


def launch(server: Server, held: FileLock) -> None:
    """Run the server in a session of its own, as nobody's child, with the descriptor of its lock."""
    for path in server.leftovers:
        path.unlink(missing_ok=True)
    _rotate(server.log)
    # The shell ends at once, so the server is adopted by init: it survives its starter, no signal from the starter's
    # terminal reaches it, and no zombie of it stays behind.
    command = ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *server.command()]
    with open(server.log, "ab", opener=_private) as log:
        subprocess.run(
            command,
            check=True,
            cwd=server.folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # neither PGPORT nor LANG of the starter may shape it
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(held.fd,),
            start_new_session=True,
            umask=0o077,
            **(server.account.popen if server.account else {}),
        )


def await_up(server: Server, launched: list[Server], log_start: int) -> None:
    """Wait until ``server`` answers; one that was just ending is launched, and added to ``launched``.

    Raises:
        EmbeddedError: it ended, took too long, or cannot write; with what its log says since byte ``log_start``.
    """
    began = time.monotonic()
    pause = 0.002
    while (state := server.probe()) is not State.UP:
        waited = time.monotonic() - began
        if state is State.UNWRITABLE and waited > _UNWRITABLE_SECONDS:
            raise _failure(server, f"{server.name} runs, but cannot write its files in {server.folder}.")
        if state is State.DOWN and not locked(server.lock):
            if server in launched:
                raise _failure(server, f"{server.name} did not start: {_tail(server.log, log_start)}")
            if start(server):
                launched.append(server)
        if waited > START_SECONDS:
            launched.clear()  # stopping it now would make the next start replay the same log again
            said = _tail(server.log, log_start)
            raise EmbeddedError(
                f"{server.name} runs, but has not answered for {START_SECONDS:.0f} s: {said}",
                remedy=f"Try again when {server.log} says it is ready, or stop it with `nexus down` and try again.",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def halt(server: Server) -> bool:
    """Stop ``server``; returns whether it ran. Call it under the start lock.

    Raises:
        EmbeddedError: it lives on in spite of every signal.
    """
    if not locked(server.lock):
        return False
    for sign, seconds in server.stop:
        deadline = time.monotonic() + seconds
        sent = False
        while time.monotonic() < deadline:
            sent = sent or _signal(server, sign)  # one that was just launched has yet to write its pid
            if not locked(server.lock):
                return True
            time.sleep(0.005)
    raise EmbeddedError(
        f"{server.name} does not end.", remedy=f"See which processes hold {server.lock} (`fuser {server.lock}`)."
    )


def log_size(server: Server) -> int:
    """The present length of the server's log, to tell later what was added."""
    return server.log.stat().st_size if server.log.exists() else 0


def _signal(server: Server, sign: signal.Signals) -> bool:
    # The pid is its own: the file is deleted before every launch, and the lock says that the writer lives.
    with suppress(OSError, ValueError, IndexError):
        pid = int(server.pid_file.read_text().splitlines()[0])
        os.kill(pid, sign)
        os.kill(pid, signal.SIGCONT)  # a suspended one would not hear the polite signals
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
