"""Keeping the children alive until told to stop."""

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

READY_SECONDS = 60.0
_STEADY_SECONDS = 60.0  # a child that lived this long is restarted without delay the next time
_LONGEST_PAUSE = 30.0
_TEND_EVERY = 2.0


class Supervisor:
    """Runs ``children``, the worker first; restarts those that die; stops all when signalled."""

    def __init__(self, children: Sequence[Child], tend: Callable[[], None], say: Callable[[str], None]) -> None:
        self.children = children
        self.tend = tend  # called every two seconds: looks after the servers
        self.say = say
        self.signals = 0
        self._failures = dict.fromkeys((child.name for child in children), 0)
        self._restart_at: dict[str, float] = {}

    def run(self, on_ready: Callable[[], None]) -> None:
        """Return when a signal asked to stop and everything has stopped. ``on_ready``: the worker takes jobs.

        Raises:
            EmbeddedError: the worker ended, or took too long, before it was ready for the first time.
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
                    f"The worker did not start: {worker.last_words()}",
                    remedy=f"Read {worker.log}, correct the cause and try again."
                    if worker.log
                    else "Correct the cause and try again.",
                )

    def _watch(self, wakeup: int) -> None:
        tend_at = time.monotonic() + _TEND_EVERY
        while not self.signals:
            now = time.monotonic()
            for child in self.children:
                self._revive(child, now)
            if now >= tend_at:
                self.tend()
                tend_at = time.monotonic() + _TEND_EVERY
            _wait(wakeup, 1.0)

    def _revive(self, child: Child, now: float) -> None:
        if not child.ended():
            return
        if child.name not in self._restart_at:
            steady = now - child.started > _STEADY_SECONDS
            self._failures[child.name] = 0 if steady else self._failures[child.name] + 1
            pause = min(0.5 * 2 ** self._failures[child.name], _LONGEST_PAUSE)
            self._restart_at[child.name] = now + pause
            self.say(f"{child.name} ended; it starts again in {pause:.0f} s")
        if now >= self._restart_at[child.name]:
            del self._restart_at[child.name]
            child.start()

    def _stop(self, wakeup: int) -> None:
        asked = self.signals
        for child in self.children:
            child.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        # Jobs may finish; a second Ctrl-C has no more patience.
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
    """Wait for a signal (also a child's end), one of ``others``, or the time."""
    if wakeup in select.select([wakeup, *others], [], [], max(0.0, seconds))[0]:
        os.read(wakeup, 4096)
