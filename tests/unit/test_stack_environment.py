"""What the children of ``nexus up`` get from its settings."""

from __future__ import annotations

import pytest

from nexus_tasks.cli.stack.processes import GRACE_SECONDS, environment
from nexus_tasks.settings import Settings


@pytest.mark.parametrize(("grace", "given"), [(300.0, GRACE_SECONDS - 5.0), (3.0, 3.0)])
def test_a_worker_gives_its_runs_back_before_its_supervisor_kills_it(grace: float, given: float) -> None:
    assert environment(Settings(shutdown_grace=grace))["NEXUS_SHUTDOWN_GRACE"] == str(given)
