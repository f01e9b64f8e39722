"""What Celery shows of a job's end: in events (Flower), in signals (error trackers, OpenTelemetry) and in results."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from nexus_tasks import Nexus
from nexus_tasks.embedded import ServerAddresses
from nexus_tasks.errors import JobFailed
from nexus_tasks.idempotency.worker.event_batches import EVERY
from tests.broker import queued
from tests.integration.inline import due_at_once
from tests.integration.jobkinds import ROOT, WITH_KINDS, Play, attempts, play
from tests.integration.signalled import signalled
from tests.sandbox import Sandbox, app, engine, eventually, sandbox

LONG = 40.0  # seconds: a deadline for a machine that is busy with other things


class Monitor:
    """What Flower keeps: each event, and the state that Celery makes of them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.state = app.events.State()
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with app.connection_for_read() as connection:
            self._receiver = app.events.Receiver(connection, handlers={"*": self._on_event}, app=app)
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def _on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.state.event(event)

    def close(self) -> None:
        """Stop listening."""
        self._receiver.should_stop = True  # it looks every second
        self._thread.join(10)

    def types(self, task_id: str) -> list[str]:
        """The types of the events about a message, in their order."""
        return [event["type"].removeprefix("task-") for event in self.events if event.get("uuid") == task_id]

    def last(self, task_id: str) -> Any:
        """What Flower shows of a message."""
        return self.state.tasks.get(task_id)


@pytest.fixture(scope="module", params=["threads", "processes"])
def here(request: pytest.FixtureRequest, servers: ServerAddresses) -> Iterator[Sandbox]:
    """One worker a pool, which runs all that is asked for here."""
    with sandbox(servers, NEXUS_LEASE_SECONDS="3") as made:
        Nexus().create_namespace("acme")
        modules = f"{WITH_KINDS[1]},tests.integration.signalled"
        made.worker("--include", modules, pool=request.param, concurrency=2, **ROOT)
        yield made


@pytest.fixture
def monitor(here: Sandbox) -> Iterator[Monitor]:  # noqa: ARG001
    listening = Monitor()
    ready = lambda: play.delay(name=uuid.uuid4().hex) and len(listening.events) > 0  # noqa: E731
    eventually(ready, within=LONG)
    yield listening
    listening.close()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def ask(name: str, *plan: str, **options: Any) -> Any:
    return play.apply_async(kwargs={"name": name, "plan": plan}, **options)


def shown(monitor: Monitor, task_id: str, state: str) -> Any:
    """Wait until Flower shows the state; returns all that it shows."""
    eventually(
        lambda: (found := monitor.last(task_id)) is not None and found.state == state,
        within=LONG,
        why=f"not {state}, but {monitor.types(task_id)}",
    )
    return monitor.last(task_id)


def noted(task_id: str, expected: list[str]) -> None:
    """Wait until the worker has sent these signals, no others: an event may overtake the signal of the same end."""
    eventually(lambda: signalled(task_id) == expected, within=LONG, why=f"the signals were never {expected}")


def test_a_job_that_completes_is_a_success(monitor: Monitor, name: str) -> None:
    asked = ask(name, "ok")
    shown(monitor, asked.id, "SUCCESS")
    noted(asked.id, ["success"])


def test_a_dead_letter_is_a_failure_and_its_message_is_not_delivered_again(monitor: Monitor, name: str) -> None:
    asked = ask(name, "permanent", ignore_result=False)
    found = shown(monitor, asked.id, "FAILURE")
    assert "Permanent: never" in found.exception
    assert "perform" in found.traceback, "the traceback leads to the handler"
    noted(asked.id, ["failure: Permanent"])
    with pytest.raises(JobFailed, match="Permanent: never"):
        asked.get(timeout=LONG)
    assert asked.failed()
    eventually(lambda: queued() == 0, within=LONG)
    assert len(attempts(name)) == 1
    assert monitor.types(asked.id).count("received") == 1


def test_a_bug_that_is_retried_is_a_retry(monitor: Monitor, name: str, here: Sandbox) -> None:
    asked = ask(name, "bug", "ok")
    found = shown(monitor, asked.id, "RETRY")
    assert "ZeroDivisionError" in found.exception
    eventually(lambda: due_at_once(here) or len(attempts(name)) == 2, within=LONG)
    shown(monitor, asked.id, "SUCCESS")
    noted(asked.id, ["retry: ZeroDivisionError", "success"])


def test_a_job_that_waits_is_no_success(monitor: Monitor, name: str, here: Sandbox) -> None:
    asked = ask(name, "wait", "ok", ignore_result=False)
    found = shown(monitor, asked.id, "RETRY")
    assert "ripeness" in found.exception
    assert not asked.ready()
    eventually(lambda: due_at_once(here) or len(attempts(name)) == 2, within=LONG)
    assert asked.get(timeout=LONG)["status"] == "completed"


def test_a_job_that_was_dropped_is_revoked(monitor: Monitor, name: str) -> None:
    asked = ask(name, "hold", ignore_result=False)
    eventually(lambda: attempts(name), within=LONG)
    Nexus().drop_job(asked.id)
    shown(monitor, asked.id, "REVOKED")
    noted(asked.id, ["revoked"])
    with pytest.raises(TaskRevokedError):
        asked.get(timeout=LONG)
    assert engine.claims.get(engine.claims.key(play.request_for(Play(name=name)))) is None


def test_a_retry_keeps_its_trace(name: str, here: Sandbox) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    asked = ask(name, "bug", "ok", headers=trace, root_id="root", parent_id="parent")
    eventually(lambda: due_at_once(here) or len(attempts(name)) == 2, within=LONG)
    assert asked.wait(LONG).status == "completed"
    assert signalled(f"{asked.id}:trace") == [f"root parent {trace['traceparent']}"] * 2


def test_a_job_that_a_task_asks_for_names_its_parent(name: str, here: Sandbox) -> None:
    outer = uuid.uuid4().hex
    asked = ask(outer, f"ask {name}")
    assert asked.wait(LONG).status == "completed"
    eventually(lambda: attempts(name), within=LONG)
    keys = here.redis().keys(f"{here.name}:test:signals:*:trace")
    told = [row for key in keys for row in here.redis().lrange(key, 0, -1)]
    assert told.count(f"{asked.id} {asked.id} None") == 1  # its root and its parent


def test_many_events_are_few_messages_and_none_is_missing(here: Sandbox, monitor: Monitor) -> None:
    listening = here.redis().pubsub()
    listening.psubscribe("*celeryev/task.multi")
    begun = time.monotonic()
    asked = [ask(uuid.uuid4().hex, "ok") for _ in range(60)]
    for one in asked:
        eventually(lambda one=one: monitor.types(one.id)[-1:] == ["succeeded"], within=LONG)
    seconds = time.monotonic() - begun
    assert all(monitor.types(one.id) == ["received", "started", "succeeded"] for one in asked)
    messages = 0
    while (found := listening.get_message(timeout=1)) is not None:
        messages += found["type"] == "pmessage"
    listening.close()
    # A message every 0.2 s, and one whenever 24 events wait. Others of this worker's events add a few.
    assert 1 <= messages <= seconds / EVERY + 3 * len(asked) / 24 + 5


def test_the_last_events_of_a_worker_are_sent_when_it_stops(here: Sandbox, name: str) -> None:
    with sandbox(here.servers) as other:
        worker = other.worker(*WITH_KINDS, concurrency=1, **ROOT)
        listening = Monitor()
        eventually(lambda: play.delay(name=uuid.uuid4().hex) and len(listening.events) > 0, within=LONG)
        asked = ask(name, "ok")
        eventually(lambda: len(attempts(name)) == 1, within=LONG)
        worker.stop()
        eventually(lambda: listening.types(asked.id)[-1:] == ["succeeded"], within=LONG)
        listening.close()
