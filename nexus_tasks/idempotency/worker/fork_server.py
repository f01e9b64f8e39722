"""The process that a worker's suspects are forked from: it has loaded all they need, and holds no thread or connection.

Over its standard input, a socket, comes a line per run, and with it the pipe that its answers go to: ``taken``, then
what the run came to, then the exit code of the child that did it. Of a child that dies only the code is heard.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict

from celery.signals import worker_process_init

from nexus_tasks.celery import app
from nexus_tasks.errors import NexusError
from nexus_tasks.idempotency.binding import binding, preload
from nexus_tasks.types import JobOutcome

IDLE_SECONDS = 60.0  # after which the process ends: it holds as much memory as a worker
LONGEST = 65_536  # bytes of a line

_children: dict[int, int] = {}  # by process id, the pipe that its exit code goes to


def main(*modules: str) -> None:
    """What such a process does that no worker has forked: load all that jobs need, then serve its standard input."""
    app.loader.import_default_modules()
    for module in modules:
        importlib.import_module(module)
    with suppress(NexusError):  # the jobs will say so themselves
        preload()
    logging.basicConfig(level=logging.INFO, format=app.conf.worker_log_format)
    gc.collect()
    gc.freeze()  # what is loaded is shared with the children as long as nobody writes to it
    line = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(line, IDLE_SECONDS)


def serve(line: socket.socket, idle: float | None) -> None:
    """Fork for one run after the other, until the worker is gone, or has had none for ``idle`` seconds."""
    for signalled in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signalled, signal.SIG_IGN)  # for the worker, which waits for what runs and then closes the line
    awake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([line.fileno(), awake], [], [], idle)
        if awake in ready:
            os.read(awake, LONGEST)
            _reap()
        elif ready:
            run, pipes, _, _ = socket.recv_fds(line, LONGEST, 1)
            if not run:
                for pid in _children:  # they die with their worker, as what runs in its threads does
                    os.kill(pid, signal.SIGKILL)
                return
            _fork(run, pipes[0], [line.fileno(), awake, waker])
        elif not _children:
            return


def _fork(run: bytes, answers: int, nobodys: list[int]) -> None:
    if pid := os.fork():
        _children[pid] = answers
        with suppress(BrokenPipeError):
            os.write(answers, b"taken\n")
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (*nobodys, *_children.values()):
            os.close(fd)
        os.set_inheritable(answers, False)
        worker_process_init.send(sender=None)  # as in a child of a prefork pool, which this is in all but name
        outcome = _take_up(*json.loads(run))
        os.write(answers, json.dumps(asdict(outcome), default=str).encode() + b"\n")
        code = 0
    finally:
        logging.shutdown()
        os._exit(code)


def _reap() -> None:
    """Tell how children have ended; whoever has heard enough does not listen any more."""
    while _children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        answers = _children.pop(pid, None)
        if answers is not None:
            with suppress(BrokenPipeError):
                os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(answers)


def _take_up(kind: str, key: str, token: str, delivery: str) -> JobOutcome:
    """Perform the run that the worker has begun."""
    from nexus_tasks.idempotency.task import task_of
    from nexus_tasks.idempotency.worker.executor import alive, perform, run_of

    task, claim = task_of(app, kind), binding().claims.get(key)
    if claim is None or claim.token != token:
        return JobOutcome(status="superseded")
    run = run_of(task, claim, task.request_for(task.load(claim.args), job_id=claim.job_id), delivery=delivery)
    with alive(run):
        return perform(task, run)


if __name__ == "__main__":
    main(*sys.argv[1:])
