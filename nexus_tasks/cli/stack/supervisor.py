"""The supervisor of ``nexus up``: starts the children, restarts a child that ended, stops all children on a signal."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from nexus_tasks.cli.stack.processes import GRACE_SECONDS, Child
from nexus_tasks.errors import EmbeddedError

READY_SECONDS = 60.0  # the longest wait for the worker's start
_STEADY_SECONDS = 60.0  # a child that ran for longer restarts after 0.5 s, the shortest pause
# The longest pause before a restart, in seconds. Each time a child ends within `_STEADY_SECONDS` of its start, its
# pause doubles, up to this value. The value was chosen by hand, not measured.
_LONGEST_PAUSE = 30.0
_SERVERS_EVERY = 2.0  # seconds between two checks of the servers


class Supervisor:
    """Runs child processes until a signal comes.

    Args:
        children: the processes. The first one is the worker.
        restart_servers: a function that restarts the servers that have ended. It is called every 2 s.
        report: a function that prints a line for people.
    """

    def __init__(
        self, children: Sequence[Child], restart_servers: Callable[[], None], report: Callable[[str], None]
    ) -> None:
        self.children = children
        self.restart_servers = restart_servers
        self.report = report
        self.signals = 0  # SIGTERM, SIGINT and SIGHUP received so far
        self._failures = dict.fromkeys((child.name for child in children), 0)
        self._restart_at: dict[str, float] = {}

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run the children. Return when a signal has come and all children have ended.

        Args:
            on_ready: called when the worker is ready for jobs.

        Raises:
            EmbeddedError: the worker ended before it was ready for the first time, or was not ready after 60 s.
        """
        with self._signals() as wakeup:
            try:
                for child in self.children:
                    child.start()
                self._await_worker(wakeup)
                if not self.signals:
                    on_ready()
                self._watch(wakeup)
            finally:
                self._stop(wakeup)

    def _await_worker(self, wakeup: int) -> None:
        worker = self.children[0]
        deadline = time.monotonic() + READY_SECONDS
        while not self.signals:
            _wait(wakeup, deadline - time.monotonic(), worker.ready_fd)
            if worker.await_ready(0):
                return
            if worker.ended() or time.monotonic() > deadline:
                raise EmbeddedError(
                    f"The worker did not start: {worker.last_log_line()}",
                    remedy=f"Read {worker.log}, correct the cause and try again."
                    if worker.log
                    else "Correct the cause and try again.",
                )

    def _watch(self, wakeup: int) -> None:
        servers_at = time.monotonic() + _SERVERS_EVERY
        while not self.signals:
            now = time.monotonic()
            for child in self.children:
                self._restart_if_ended(child, now)
            if now >= servers_at:
                self.restart_servers()
                servers_at = time.monotonic() + _SERVERS_EVERY
            _wait(wakeup, 1.0)

    def _restart_if_ended(self, child: Child, now: float) -> None:
        if not child.ended():
            return
        if child.name not in self._restart_at:
            steady = now - child.started > _STEADY_SECONDS
            self._failures[child.name] = 0 if steady else self._failures[child.name] + 1
            pause = min(0.5 * 2 ** self._failures[child.name], _LONGEST_PAUSE)
            self._restart_at[child.name] = now + pause
            self.report(f"{child.name} ended; it starts again in {pause:g} s")
        if now >= self._restart_at[child.name]:
            del self._restart_at[child.name]
            try:
                child.start()
            except OSError as error:  # such as too little memory; the other children go on
                self.report(f"{child.name} could not be started: {error}")

    def _stop(self, wakeup: int) -> None:
        asked = self.signals
        for child in self.children:
            child.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        # Children that have not ended after 30 s are killed. Until then the worker lets its running jobs finish, or
        # gives them back to the queue. A second Ctrl-C ends this wait.
        while (
            time.monotonic() < deadline and self.signals <= max(asked, 1) and not all(c.ended() for c in self.children)
        ):
            _wait(wakeup, 0.2)
        for child in self.children:
            child.kill()

    @contextmanager
    def _signals(self) -> Iterator[int]:
        def count(_signum: int, _frame: FrameType | None) -> None:
            self.signals += 1

        def ignore(_signum: int, _frame: FrameType | None) -> None:
            return

        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        handlers = {signal.SIGTERM: count, signal.SIGINT: count, signal.SIGHUP: count, signal.SIGCHLD: ignore}
        before = {sign: signal.signal(sign, handler) for sign, handler in handlers.items()}
        wakeup_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield read
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for sign, handler in before.items():
                signal.signal(sign, handler)
            os.close(read)
            os.close(write)


def _wait(wakeup: int, seconds: float, *others: int) -> None:
    """Wait until a signal comes, a child ends, a descriptor of ``others`` is readable, or ``seconds`` are over."""
    if wakeup in select.select([wakeup, *others], [], [], max(0.0, seconds))[0]:
        os.read(wakeup, 4096)
