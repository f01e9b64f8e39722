"""Who counts as a live worker."""

from __future__ import annotations

from typing import Any

import pytest

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
