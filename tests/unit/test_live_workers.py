"""Who counts as a live worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nexus_tasks.cli import stack, workers
from nexus_tasks.cli.stack import live_workers, worker_alive
from nexus_tasks.deployment import Deployment, use

BEAT, WORKER = {"celerybeat@host": {"ok": "pong"}}, {"w1@host": {"ok": "pong"}}


@pytest.mark.parametrize(
    ("answering", "expected"), [([], []), ([BEAT], []), ([WORKER], ["w1@host"]), ([BEAT, WORKER], ["w1@host"])]
)
def test_beat_answers_but_is_no_worker(
    monkeypatch: pytest.MonkeyPatch, answering: list[dict[str, Any]], expected: list[str]
) -> None:
    with use(Deployment()) as deployment:
        control = deployment.app.control
        monkeypatch.setattr(control, "broadcast", lambda *_args, limit=None, **_options: answering[:limit])
        assert live_workers() == expected
        assert worker_alive() is bool(expected), "beat's answer hid the worker's"


def test_ctrl_c_while_the_worker_of_a_command_starts_says_what_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @contextmanager
    def interrupted(_settings: object) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    monkeypatch.setattr(workers, "worker_runs", lambda: False)
    monkeypatch.setattr(stack, "temporary_worker", interrupted)
    with pytest.raises(KeyboardInterrupt), workers.worker_for_wait():
        pass
    assert "Interrupted. What is stored stays." in capsys.readouterr().err
