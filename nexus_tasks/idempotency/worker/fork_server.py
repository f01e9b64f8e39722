"""The fork server: a process that has loaded the code of jobs, has no thread or connection, and forks a child per run.

The worker (``isolation.py``) sends the fork server a message per run through a socket. The message has the seconds that
the run may last, the name of the run, and one end of a pipe. Through the pipe the worker gets three answers: ``taken``,
the run's outcome, and the child's exit code. When a child dies, or is killed because its time is over, the outcome is
missing.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict

from celery.signals import worker_process_init

from nexus_tasks import tracing
from nexus_tasks.types import JobOutcome

# Seconds without a run after which a fork server ends (see `idle` of `serve`). It holds as much memory as a worker, and
# its end frees this memory.
IDLE_SECONDS = 60.0
LONGEST = 65_536  # bytes of a message


def serve(line: socket.socket, take_up: Callable[..., JobOutcome], *, idle: float | None) -> None:
    """Fork a child for each run, until the worker closes the socket or dies.

    Args:
        line: the socket through which the worker sends the runs.
        take_up: performs a run in a child; its arguments are the texts in the message that name the run.
        idle: seconds without a run after which the server ends; with ``None`` it does not end.
    """
    for signalled in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signalled, signal.SIG_IGN)  # only the end of the socket ends this process
    awake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # process id → the pipe for the child's exit code
    ends: dict[int, float] = {}  # process id → when its time is over
    while True:
        ready, _, _ = select.select([line.fileno(), awake], [], [], _until_next(ends, idle))
        _kill_overdue(ends)
        if awake in ready:
            os.read(awake, LONGEST)
            _reap(children)
            ends = {pid: end for pid, end in ends.items() if pid in children}
        elif ready:
            run, pipes, _, _ = socket.recv_fds(line, LONGEST, 1)
            if not run:
                for pid in children:  # the children die with the worker, as runs in its threads do
                    os.kill(pid, signal.SIGKILL)
                return
            seconds, *named = json.loads(run)
            pid = _fork(named, pipes[0], take_up, children, [line.fileno(), awake, waker])
            ends[pid] = time.monotonic() + seconds
        elif not children:
            return


def _until_next(ends: Mapping[int, float], idle: float | None) -> float | None:
    """Seconds until the first child's time is over; without a child, until the server ends."""
    return max(min(ends.values()) - time.monotonic(), 0.0) if ends else idle


def _kill_overdue(ends: dict[int, float]) -> None:
    """Kill the children whose time is over. No other process can have a child's pid before :func:`_reap`."""
    for pid, end in list(ends.items()):
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
            del ends[pid]


def _fork(
    run: list[str], answers: int, take_up: Callable[..., JobOutcome], children: dict[int, int], inherited: list[int]
) -> int:
    if pid := os.fork():
        children[pid] = answers
        with suppress(BrokenPipeError):
            os.write(answers, b"taken\n")
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (*inherited, *children.values()):
            os.close(fd)
        os.set_inheritable(answers, False)
        worker_process_init.send(sender=None)  # as Celery does in a child of a prefork pool
        outcome = take_up(*run)
        os.write(answers, json.dumps(asdict(outcome), default=str).encode() + b"\n")
        tracing.flush()
        code = 0
    finally:
        logging.shutdown()
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    """Report the exit codes of ended children. The worker may have closed its end of a pipe."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        answers = children.pop(pid, None)
        if answers is not None:
            with suppress(BrokenPipeError):
                os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(answers)
