"""The stack's processes, supervised by this process or by one in the background."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from nexus_tasks import embedded
from nexus_tasks.cli.stack.lifetime import claim_children
from nexus_tasks.cli.stack.processes import GRACE_SECONDS, Child, environment, log_file, open_log
from nexus_tasks.cli.stack.supervisor import READY_SECONDS, Supervisor
from nexus_tasks.cli.stack.workers import beat_arguments, worker_arguments
from nexus_tasks.errors import EmbeddedError
from nexus_tasks.file_locks import FileLock
from nexus_tasks.settings import Settings, get_settings


@dataclass(frozen=True)
class Plan:
    """What ``nexus up`` was asked for."""

    concurrency: int | None = None
    flower_port: int | None = None  # None: no Flower


def supervise(settings: Settings, plan: Plan, on_ready: Callable[[], None], *, logs: bool = False) -> None:
    """Run the stack until a signal ends it; with ``logs`` into files, else on the terminal.

    Raises:
        EmbeddedError: the worker does not start, or processes of an earlier stack do not end.
    """

    def tend() -> None:
        if not settings.embedded:
            return
        try:
            embedded.ensure(settings.home)  # a killed server comes back without waiting for a command that needs it
        except EmbeddedError as error:
            _say(str(error))

    with claim_children(settings.home) as held:
        Supervisor(_children(settings, plan, held, logs=logs), tend, _say).run(on_ready)


def _children(settings: Settings, plan: Plan, held: FileLock, *, logs: bool) -> list[Child]:
    worker = worker_arguments(settings, f"nexus-{os.getpid()}", plan.concurrency)
    wanted = {"worker": worker, "beat": beat_arguments(settings)}
    if plan.flower_port is not None:
        address = ["--address=127.0.0.1", f"--port={plan.flower_port}"]
        wanted["flower"] = ["-A", "nexus_tasks", "flower", *address]
    env = environment(settings)
    return [
        Child(name, arguments, env, log_file(settings.home, name) if logs else None, (held.fd,))
        for name, arguments in wanted.items()
    ]


def _say(message: str) -> None:
    print(f"{'stack':>6} | {message}", flush=True)


def detach(settings: Settings, plan: Plan, held: FileLock) -> int:
    """Run the stack under a supervisor in the background, who takes over ``held``; returns its pid once it is ready.

    Raises:
        EmbeddedError: it did not start.
    """
    ready, theirs = os.pipe()
    arguments = [str(held.fd), str(theirs), json.dumps([plan.concurrency, plan.flower_port])]
    log = open_log(log_file(settings.home, "stack"))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "nexus_tasks.cli.stack.run", *arguments],
            env=environment(settings),
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
        said = _read(ready)
        if said != "ready":
            raise _failure(settings, said)
    except BaseException:  # an interrupt too: nobody else would end it
        process.terminate()
        process.wait()
        raise
    finally:
        os.close(ready)
    process.returncode = 0  # it is nobody's child from here on: no warning about it when this object goes
    return process.pid


def _read(ready: int) -> str:
    # Longest way there: the children of an earlier stack end first, then the worker starts.
    if not select.select([ready], [], [], GRACE_SECONDS + READY_SECONDS + 15.0)[0]:
        return ""
    return os.read(ready, 65_536).decode().strip()


def _failure(settings: Settings, said: str) -> EmbeddedError:
    if said:
        error = json.loads(said)
        return EmbeddedError(error["message"], remedy=error["remedy"])
    log = log_file(settings.home, "stack")
    return EmbeddedError("The stack did not start.", remedy=f"Read {log}, correct the cause and try again.")


def main() -> None:
    """The supervisor in the background: ``run LOCK_FD READY_FD [CONCURRENCY, FLOWER_PORT]``."""
    held, ready = FileLock(int(sys.argv[1])), int(sys.argv[2])
    held.write(f"{os.getpid()}\n")
    try:
        supervise(get_settings(), Plan(*json.loads(sys.argv[3])), lambda: _tell(ready, "ready"), logs=True)
    except EmbeddedError as error:
        _tell(ready, json.dumps(error.as_dict()))
        raise SystemExit(1) from error


def _tell(ready: int, message: str) -> None:
    os.write(ready, f"{message}\n".encode())
    os.close(ready)


if __name__ == "__main__":
    main()
