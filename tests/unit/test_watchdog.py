"""The watchdog leaves a worker alone that moves messages aside, and finds the worker that takes none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from nexus_tasks.idempotency.celery_patches import malformed_messages
from nexus_tasks.idempotency.engine import attach, engine_of
from nexus_tasks.idempotency.worker import watchdog
from nexus_tasks.idempotency.worker.vitals import Vitals
from nexus_tasks.idempotency.worker.watchdog import Watchdog

UNKNOWN = SimpleNamespace(
    headers={"task": "unheard.of", "id": "j"}, properties={}, delivery_info={}, payload=[[], {}, {}]
)
MALFORMED = SimpleNamespace(headers={}, properties={}, delivery_info={}, payload={}, reject_log_error=lambda *_: None)


@pytest.fixture
def app() -> Celery:
    app = Celery("watched", set_as_current=False)
    engine: Any = SimpleNamespace(messages_taken=0, claims=None, vitals=Vitals())
    attach(app, lambda: engine)
    return app


@pytest.fixture
def watching(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    """A watchdog without patience, of a worker with free slots that sees messages and cannot mend its consumer."""
    monkeypatch.setattr(watchdog, "PATIENCE", 0.0)
    monkeypatch.setattr(state, "all_total_count", [0])
    monkeypatch.setattr(Watchdog, "_could_begin", lambda _: True)
    watching = Watchdog(SimpleNamespace(app=app, consumer=SimpleNamespace(hub=None)))
    assert not watching.look()
    return watching


def test_a_worker_that_takes_no_message_must_end(watching: Watchdog) -> None:
    assert watching.look()


def test_a_begun_message_is_progress(watching: Watchdog) -> None:
    state.all_total_count[0] += 1
    assert not watching.look()
    assert watching.look()


@pytest.mark.parametrize("message", [UNKNOWN, MALFORMED], ids=["an unknown kind", "malformed"])
def test_a_message_that_is_moved_aside_is_progress(
    watching: Watchdog, app: Celery, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = list[object]()
    monkeypatch.setattr(malformed_messages, "set_aside", lambda _claims, message, _fault: aside.append(message))
    consumer: Any = SimpleNamespace(
        app=app,
        strategies={},
        on_unknown_task=lambda _body, message, _error: aside.append(message),
        on_task_message=(),
        call_soon_ack=None,
        connection_errors=(),
    )
    take = malformed_messages._create_task_handler(consumer)
    take(message)
    assert aside == [message]
    assert engine_of(app).messages_taken == 1
    assert not watching.look()
    assert watching.look()
