"""Workers that are killed at random, and a process manager that replaces the killed workers."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.kill_recovery import Kill

ROOT = Path(__file__).parents[1]
WORKERS, CONCURRENCY = 2, 4


@dataclass
class Fleet:
    """Worker processes of one system; ``strike`` kills one and starts another in its place."""

    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    dice: random.Random
    alive: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)  # by process group

    def __enter__(self) -> Self:
        """Start all workers."""
        for _ in range(WORKERS):
            self._start_one()
        return self

    def __exit__(self, *_error: object) -> None:
        """Kill all workers."""
        for worker in self.alive:
            os.killpg(worker.pid, 9)
            worker.wait()
        self.alive.clear()

    def _start_one(self) -> None:
        """Start a worker in its own process group, so that its children and its fork server die with it."""
        with self.log.open("ab") as output:
            worker = subprocess.Popen(
                [*self.command, "--hostname", f"k{time.time_ns()}@bench"],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.alive.append(worker)
        self.started[worker.pid] = time.time()

    def strike(self) -> None:
        """Send SIGKILL to a random worker, ready or starting, and all its processes; start another worker."""
        victim = self.alive.pop(self.dice.randrange(len(self.alive)))
        os.killpg(victim.pid, 9)
        victim.wait()
        self.kills.append(Kill(time.time(), victim.pid))
        self._start_one()

    def replace_dead(self) -> None:
        """Replace each worker that has ended, as a process manager does."""
        for worker in [w for w in self.alive if w.poll() is not None]:
            self.alive.remove(worker)
            self._start_one()
