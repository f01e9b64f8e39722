"""The supervisor of ``nexus up`` goes on when a child cannot be started again at the first try."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks.cli.stack import run
from nexus_tasks.cli.stack.processes import Child
from nexus_tasks.cli.stack.supervisor import Supervisor


class Ended:
    """A child that has ended, and that cannot be started the first time."""

    name, started, tries = "worker", 0.0, 0

    def ended(self) -> bool:
        return self.tries < 2

    def start(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise BlockingIOError("Resource temporarily unavailable")


def test_a_child_is_started_again_after_a_try_without_memory() -> None:
    child: Any = Ended()
    said = list[str]()
    supervisor = Supervisor([child], lambda: None, said.append)
    for now in range(100, 105):
        supervisor._restart_if_ended(child, float(now))
    assert child.tries == 2
    assert any("could not be started: Resource temporarily unavailable" in line for line in said)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_disk_under_the_log_does_not_end_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closing it raises
    monkeypatch.setattr(sys, "stdout", full)
    try:
        run._print("worker ended; it starts again in 1 s")
    finally:
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


def test_a_child_whose_log_cannot_be_opened_leaves_no_descriptor_open(tmp_path: Path) -> None:
    child = Child("worker", [], {}, tmp_path, tmp_path / "missing" / "worker.log")
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):  # the supervisor tries again and again
        with pytest.raises(FileNotFoundError):
            child.start()
    assert len(os.listdir("/dev/fd")) == before
