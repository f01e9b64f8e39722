"""What a run has read is freed when its message ends, not with the next full garbage collection."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from celery.app.trace import build_tracer

from nexus_tasks import Nexus
from nexus_tasks.idempotency.task import task_of
from nexus_tasks.idempotency.worker.run import Run, Wait
from nexus_tasks.types import JobOutcome
from tests.integration.jobkinds import BODIES, ERRORS
from tests.sandbox import Sandbox, engine

ENDS = ("ok", "wait", "transient", "bug", "misconfigured", "permanent")


@pytest.fixture(autouse=True)
def no_collector(here: Sandbox) -> Iterator[None]:  # noqa: ARG001
    Nexus().create_namespace("acme")
    logging.disable()  # pytest would keep the log records, whose tracebacks keep the run
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)
    BODIES.clear()


class Read:
    """Stands for what a handler reads: prompts, facts, vectors."""


def trace() -> Any:
    """Handle the message of a job as a worker's thread does. Returns what Celery's tracer returns."""
    task = task_of(engine, "play")
    asked = task.delay(name="a")
    message = {"id": asked.id, "headers": {}, "delivery_info": {"routing_key": "maintenance"}, "hostname": "w@here"}
    return build_tracer(task.name, task, app=task.app)(asked.id, [], {"name": "a"}, message)


@pytest.mark.parametrize("end", ENDS)
def test_a_run_leaves_nothing_behind(end: str) -> None:
    seen = list[weakref.ref[Any]]()

    def body(run: Run, _arguments: object) -> JobOutcome:
        read = Read()
        seen.extend([weakref.ref(run), weakref.ref(read)])
        if end in ERRORS:
            try:
                raise KeyError(read)  # an error may be caused by another one, which has a traceback of its own
            except KeyError as cause:
                raise ERRORS[end]() from cause
        return JobOutcome(status="completed")

    BODIES["a"] = body
    trace()

    assert [one() for one in seen] == [None, None]


def test_the_error_of_a_job_that_waits_keeps_its_words() -> None:
    def body(_run: Run, _arguments: object) -> JobOutcome:
        raise Wait("ripeness", 9.0, "soon")

    BODIES["a"] = body
    ended = trace()

    assert ended.info.state == "RETRY"
    assert "ripeness (9.0 s) soon" in str(ended.info.retval)
    assert "ripeness (9.0 s) soon" in repr(ended.info.retval)  # the event `task-retried` is sent after the end
    assert "raise_if_it_waits" in ended.retval.traceback  # Celery's events and results get it
