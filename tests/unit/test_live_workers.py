"""Who counts as a live worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

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


def test_a_broker_that_goes_away_during_the_look_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The look for workers is the last step of `ingest`. What it stored is not undone by an error."""

    def cut_off(*_args: object, **_options: object) -> None:
        raise redis.ConnectionError("Connection closed by server.")

    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    monkeypatch.setenv("NEXUS_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("NEXUS_REDIS_URL", "redis://127.0.0.1:1")
    with use(Deployment()) as deployment:
        monkeypatch.setattr(deployment.app.control, "broadcast", cut_off)
        workers.warn_if_none()
    assert "The broker does not answer: Connection closed by server." in capsys.readouterr().err


def test_a_broker_that_takes_no_question_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Celery publishes a question until the broker takes it. Before, `ingest` stood still after its last word."""
    ended = threading.Event()
    monkeypatch.setenv("NEXUS_HOME", str(tmp_path))
    monkeypatch.setenv("NEXUS_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("NEXUS_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setattr(stack.workers, "_PUBLISH_SECONDS", 0.1)
    with use(Deployment()) as deployment:
        monkeypatch.setattr(deployment.app.control, "broadcast", lambda *_args, **_options: ended.wait(60))
        workers.warn_if_none()
    ended.set()
    assert "The broker does not answer: It has taken no message for" in capsys.readouterr().err


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
