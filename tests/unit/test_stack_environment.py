"""What the children of ``nexus up`` get from its settings."""

from __future__ import annotations

import pytest

from nexus_tasks.cli.stack.processes import GRACE_SECONDS, environment
from nexus_tasks.settings import Settings, load_settings


@pytest.mark.parametrize(("grace", "given"), [(300.0, GRACE_SECONDS - 5.0), (3.0, 3.0)])
def test_a_worker_gives_its_runs_back_before_its_supervisor_kills_it(grace: float, given: float) -> None:
    assert environment(Settings(shutdown_grace=grace))["NEXUS_SHUTDOWN_GRACE"] == str(given)


def test_a_child_reads_the_settings_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        namespaces=("hotel", "museum"),
        http_origins=("https://a.example", "https://b.example"),
        prices={"claude-haiku-5-5": (1.0, 5.0, 1.25, 0.1)},
        hook_observe=False,
        metrics_port=9540,
    )
    for name, value in environment(given).items():
        monkeypatch.setenv(name, value)
    read = load_settings()
    assert {name: getattr(read, name) for name in given.model_fields_set} == given.model_dump(exclude_unset=True)
