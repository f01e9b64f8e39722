"""Run the processes of ``nexus up`` under a supervisor, in this process or in a background process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nexus_tasks import embedded
from nexus_tasks.cli.stack.flower import user_variables
from nexus_tasks.cli.stack.lifetime import claim_children, is_in_place
from nexus_tasks.cli.stack.processes import GRACE_SECONDS, Child, environment, log_file, working_folder
from nexus_tasks.cli.stack.supervisor import READY_SECONDS, Supervisor
from nexus_tasks.cli.stack.workers import beat_arguments, worker_arguments
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import FileLock
from nexus_tasks.files import open_log
from nexus_tasks.settings import Settings, load_settings


@dataclass(frozen=True)
class StackOptions:
    """The options of ``nexus up``."""

    concurrency: int | None = None
    flower_port: int | None = None  # without a port Flower does not run


def supervise(settings: Settings, options: StackOptions, on_ready: Callable[[], None], *, logs: bool = False) -> None:
    """Run the stack until a signal ends it.

    Args:
        settings: the settings that the processes get.
        options: the options of ``nexus up``.
        on_ready: called when the worker is ready for jobs.
        logs: write the processes' output to log files. By default the output is printed.

    Raises:
        EmbeddedError: the worker does not start, or processes of an earlier stack do not end.
    """

    def restart_servers() -> None:
        if not is_in_place(settings.home, held):  # a new home in its place would begin without any memory
            _print(f"The folder {settings.home} was deleted or renamed, so this stack ends.")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not settings.embedded:
            return
        try:
            embedded.restart_ended(settings.home)  # before any command needs them
        except Exception as error:  # it is tried again in 2 s, and the children go on
            _print(f"The embedded servers could not be started: {error}")

    with claim_children(settings.home) as held:
        Supervisor(_children(settings, options, held, logs=logs), restart_servers, _print).run(on_ready)


def _children(settings: Settings, options: StackOptions, held: FileLock, *, logs: bool) -> list[Child]:
    worker = worker_arguments(settings, f"nexus-{os.getpid()}", options.concurrency)
    wanted = {"worker": worker, "beat": beat_arguments(settings)}
    users: dict[str, dict[str, str]] = {}
    if options.flower_port is not None:
        address = ["--address=127.0.0.1", f"--port={options.flower_port}"]
        wanted["flower"] = ["-A", "nexus_tasks", "flower", *address]
        users["flower"] = user_variables(settings.home)
    env, folder = environment(settings), working_folder(settings.home)
    return [
        Child(
            name,
            arguments,
            env | users.get(name, {}),
            folder,
            log_file(settings.home, name) if logs else None,
            (held.fd,),
        )
        for name, arguments in wanted.items()
    ]


def _print(message: str) -> None:
    """Print a message. An error of the output, such as a full disk under the log, must not end the stack."""
    with suppress(OSError):
        print(f"{'stack':>6} | {message}", flush=True)


def detach(settings: Settings, options: StackOptions, held: FileLock) -> int:
    """Start a supervisor in the background. Returns the supervisor's pid as soon as the worker is ready.

    Args:
        settings: the settings that the processes get.
        options: the options of ``nexus up``.
        held: the lock of ``nexus up``, which the supervisor inherits.

    Raises:
        EmbeddedError: the stack did not start.
    """
    ready, theirs = os.pipe()
    arguments = [str(held.fd), str(theirs), json.dumps([options.concurrency, options.flower_port])]
    log = open_log(os.fspath(log_file(settings.home, "stack")))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nexus_tasks.cli.stack.run", *arguments],
            env=environment(settings),
            cwd=working_folder(settings.home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(held.fd, theirs),
            umask=0o077,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
        os.close(log)
    try:
        held.write(f"{process.pid}\n")
        answer = _read(ready)
        if answer != "ready":
            raise _failure(settings, answer)
    except BaseException:  # also after a Ctrl-C, because no other process would end the supervisor
        process.terminate()
        process.wait()
        raise
    finally:
        os.close(ready)
    process.returncode = 0  # without this, `subprocess` would warn that its child, the supervisor, still runs
    return process.pid


def _read(ready: int) -> str:
    # The longest wait: the children of an earlier stack end (30 s), then the worker starts (60 s).
    if not select.select([ready], [], [], GRACE_SECONDS + READY_SECONDS + 15.0)[0]:
        return ""
    return os.read(ready, 65_536).decode().strip()


def _failure(settings: Settings, answer: str) -> EmbeddedError:
    if answer:
        error = json.loads(answer)
        return EmbeddedError(error["message"], remedy=error["remedy"])
    log = log_file(settings.home, "stack")
    return EmbeddedError("The stack did not start.", remedy=f"Read {log}, correct the cause and try again.")


def main() -> None:
    """Run the supervisor of :func:`detach`. Its arguments are ``LOCK_FD READY_FD [CONCURRENCY, FLOWER_PORT]``."""
    held, ready = FileLock(int(sys.argv[1])), int(sys.argv[2])
    held.write(f"{os.getpid()}\n")
    try:
        supervise(load_settings(), StackOptions(*json.loads(sys.argv[3])), lambda: _answer(ready, "ready"), logs=True)
    except EmbeddedError as error:
        _answer(ready, json.dumps(error.as_dict()))
        raise SystemExit(1) from error


def _answer(ready: int, message: str) -> None:
    os.write(ready, f"{message}\n".encode())
    os.close(ready)


if __name__ == "__main__":
    main()
