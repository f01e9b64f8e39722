"""The supervisor of ``nexus up`` goes on when a child cannot be started again at the first try."""

from __future__ import annotations

from typing import Any

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
